// The end of a job's log, as it grows: the REST API streams it, a page keeps a bounded piece of it.
(function () {
  "use strict";
  var most = 400000; // characters a page keeps; what was before is on the log's own page
  var hiddenFor = 30000; // ms out of sight before the connection is given back

  function follow(el) {
    var next = Number(el.dataset.next) || 0;
    var state = document.getElementById("log-state");
    var again = document.getElementById("log-again");
    var source = null, timer = 0, rest = 0, tries = 0, ended = false, cut = false, length = el.textContent.length;

    function say(text) { if (state && state.textContent !== text) state.textContent = text; }

    function append(text) {
      if (!text) return;
      var pinned = el.scrollTop + el.clientHeight >= el.scrollHeight - 8;
      el.appendChild(document.createTextNode(text));
      length += text.length;
      while (length > most && el.firstChild) {
        var first = el.firstChild, over = length - most;
        cut = true;
        if (first.data.length <= over) {
          el.removeChild(first);
          length -= first.data.length;
        } else {
          var line = first.data.indexOf("\n", over) + 1 || over;
          first.deleteData(0, line);
          length -= line;
        }
      }
      if (pinned) el.scrollTop = el.scrollHeight;
    }

    function open() {
      clearTimeout(timer);
      if (source) source.close();
      if (ended) return;
      source = new EventSource(el.dataset.log + "?follow=true&offset=" + next);
      source.onopen = function () { tries = 0; say(length ? "live" : "waits for it to print"); if (again) again.hidden = true; };
      source.addEventListener("log", function (e) {
        var piece = JSON.parse(e.data);
        append(piece.text);
        next = piece.next; // another attempt begins anew
        say(cut ? "live; the beginning is not shown here" : "live");
      });
      source.addEventListener("end", function () {
        ended = true;
        source.close();
        say("its end");
      });
      source.onerror = function () {
        if (ended) return;
        source.close();
        source = null;
        if (again) again.hidden = false;
        say(tries ? "not live: it cannot be read right now, tried again" : "waits for it to print");
        timer = setTimeout(open, Math.min(1000 * Math.pow(2, tries++), 15000));
      };
    }

    document.addEventListener("visibilitychange", function () {
      clearTimeout(rest);
      if (!document.hidden) {
        if (!source && !ended) open();
        return;
      }
      rest = setTimeout(function () {
        clearTimeout(timer);
        if (source) source.close();
        source = null;
        say("paused");
      }, hiddenFor);
    });
    window.addEventListener("pagehide", function () { if (source) source.close(); source = null; });
    window.addEventListener("pageshow", function (e) { if (e.persisted) open(); });
    open();
  }

  document.querySelectorAll("[data-log]").forEach(follow);
})();
