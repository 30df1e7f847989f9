// The live stream: one EventSource for the page, which says truthfully how it stands and gets
// going again by itself. The sse extension takes what htmx.createEventSource returns; ours is a
// small object in front of the real source, so that
//   - a server that restarts, or answers 503 for a while, is tried again with growing pauses;
//   - whatever may have been missed is fetched after a break;
//   - a tab that nobody sees gives its connection back (browsers allow six to a host).
(function () {
  "use strict";
  var hiddenFor = 30000; // ms out of sight before the connection is given back
  var lostAfter = 20000; // ms without a connection before "reconnecting" becomes "offline"

  function show(state, lost) {
    var dot = document.getElementById("live");
    if (!dot || dot.dataset.state === state) return;
    var since = new Date(lost || Date.now()).toLocaleTimeString();
    var words = {
      live: ["live", "What you see is up to date."],
      connecting: ["connecting…", "The page is not live yet."],
      reconnecting: ["reconnecting…", "The connection was lost at " + since + ". What you see is from then."],
      offline: ["offline since " + since, "The server does not answer. What you see is from then; it is tried again."],
      paused: ["paused", "Updates rest while nobody looks."],
    };
    dot.dataset.state = state;
    dot.textContent = words[state][0];
    dot.title = words[state][1];
  }

  function Source(url) {
    this.url = url;
    this.readyState = 0; // as the extension expects of an EventSource
    this.listeners = {};
    this.tries = 0;
    this.broken = false;
    this.lost = 0;
    this.open();
    var self = this;
    document.addEventListener("visibilitychange", function () { self.seen(!document.hidden); });
    window.addEventListener("online", function () { self.again(0); });
    window.addEventListener("offline", function () { self.drop(); });
    window.addEventListener("pageshow", function (e) { if (e.persisted) self.again(0); });
  }

  Source.prototype.open = function () {
    var self = this;
    clearTimeout(this.timer);
    if (this.real) this.real.close();
    this.tell();
    var real = (this.real = new EventSource(this.url));
    real.onopen = function () {
      var missed = self.broken;
      self.tries = 0;
      self.broken = false;
      show("live");
      if (self.onopen) self.onopen();
      if (missed) self.catchUp();
    };
    real.onerror = function () { if (self.real === real) self.drop(); };
    Object.keys(this.listeners).forEach(function (name) { self.attach(name); });
  };

  Source.prototype.tell = function () {
    if (document.hidden) return show("paused");
    if (!this.broken) return show("connecting");
    show(Date.now() - this.lost > lostAfter || !navigator.onLine ? "offline" : "reconnecting", this.lost);
  };

  Source.prototype.drop = function () {
    if (this.real) this.real.close();
    this.real = null;
    if (!this.broken) {
      var self = this;
      this.lost = Date.now();
      setTimeout(function () { if (self.broken) self.tell(); }, lostAfter + 10);
    }
    this.broken = true;
    this.again(Math.min(500 * Math.pow(2, this.tries++), 10000) * (0.75 + Math.random() / 2));
  };

  Source.prototype.again = function (wait) {
    var self = this;
    if (this.closed || (this.real && this.real.readyState === 1)) return;
    this.tell();
    if (document.hidden) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(function () { self.open(); }, wait);
  };

  Source.prototype.seen = function (visible) {
    var self = this;
    clearTimeout(this.rest);
    if (visible) return this.again(0);
    this.rest = setTimeout(function () {
      if (self.real) self.real.close();
      self.real = null;
      self.broken = true;
      self.lost = Date.now();
      show("paused");
    }, hiddenFor);
  };

  // Each fragment fetches itself once for what may have changed during a break.
  Source.prototype.catchUp = function () {
    var done = [];
    for (var name in this.listeners) {
      this.listeners[name].slice().forEach(function (f) {
        if (done.indexOf(f) < 0) { done.push(f); f(new MessageEvent(name, { data: "" })); }
      });
    }
  };

  Source.prototype.attach = function (name) {
    var self = this;
    this.real.addEventListener(name, function (e) {
      (self.listeners[name] || []).slice().forEach(function (f) { f(e); });
    });
  };

  Source.prototype.addEventListener = function (name, f) {
    if (!this.listeners[name]) {
      this.listeners[name] = [];
      if (this.real) this.attach(name);
    }
    this.listeners[name].push(f);
  };

  Source.prototype.removeEventListener = function (name, f) {
    this.listeners[name] = (this.listeners[name] || []).filter(function (g) { return g !== f; });
  };

  Source.prototype.close = function () {
    this.closed = true;
    this.readyState = 2;
    clearTimeout(this.timer);
    if (this.real) this.real.close();
  };

  htmx.createEventSource = function (url) { return new Source(url); };

  // A fragment that is replaced keeps what the reader did in it: ticked boxes, opened details,
  // how far a box was scrolled. (htmx itself keeps the focus of elements that have an id.)
  function key(el) { return el.dataset.keep || el.id; }
  document.addEventListener("htmx:beforeSwap", function (e) {
    // Led elsewhere, to the sign-in page most likely: that is a page, not a fragment.
    var asked = e.detail.requestConfig && e.detail.requestConfig.path, got = e.detail.xhr.responseURL;
    if (asked && got && new URL(got).pathname !== new URL(asked, location.href).pathname) {
      e.detail.shouldSwap = false;
      location.assign(got);
      return;
    }
    var from = e.detail.target;
    var kept = { ticked: {}, open: {}, scroll: {} };
    from.querySelectorAll("input[type=checkbox]:checked[data-keep]").forEach(function (el) { kept.ticked[key(el)] = true; });
    from.querySelectorAll("details[data-keep]").forEach(function (el) { kept.open[key(el)] = el.open; });
    from.querySelectorAll("[data-keep-scroll]").forEach(function (el) { kept.scroll[el.dataset.keepScroll] = [el.scrollLeft, el.scrollTop]; });
    window.smKept = kept;
  });
  document.addEventListener("htmx:afterSettle", function (e) {
    var kept = window.smKept, into = e.detail.elt;
    if (!kept || !into.querySelectorAll) return;
    into.querySelectorAll("input[type=checkbox][data-keep]").forEach(function (el) { if (kept.ticked[key(el)]) el.checked = true; });
    into.querySelectorAll("details[data-keep]").forEach(function (el) { if (key(el) in kept.open) el.open = kept.open[key(el)]; });
    into.querySelectorAll("[data-keep-scroll]").forEach(function (el) {
      var at = kept.scroll[el.dataset.keepScroll];
      if (at) { el.scrollLeft = at[0]; el.scrollTop = at[1]; }
    });
    document.dispatchEvent(new CustomEvent("sm:swapped", { detail: into }));
  });
})();
