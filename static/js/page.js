// Small comforts. Without this file every page still works.
(function () {
  "use strict";

  // Moments are shown in the reader's own time zone, and "12 s ago" stays true.
  function pad(n) { return (n < 10 ? "0" : "") + n; }
  function brief(s) {
    if (s < 60) return Math.floor(s) + " s";
    if (s < 3600) return Math.floor(s / 60) + " min";
    if (s < 48 * 3600) return Math.floor(s / 3600) + " h";
    return Math.floor(s / 86400) + " d";
  }
  var months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  // The server's clock is the one that counts: what it said at load is compared with ours once.
  var said = Date.parse(document.documentElement.dataset.now || "");
  var skew = said ? said - Date.now() : 0;
  if (Math.abs(skew) < 5000) skew = 0;
  function tell(el) {
    var t = new Date(el.dateTime);
    if (isNaN(t)) return;
    var now = new Date(Date.now() + skew), s = (now - t) / 1000, text;
    switch (el.dataset.as) {
      case "ago":
        if (Math.abs(s) > 7 * 86400) text = t.getDate() + " " + months[t.getMonth()] + " " + t.getFullYear();
        else if (s < -1) text = "in " + brief(-s);
        else if (s < 1) text = "just now";
        else text = brief(s) + " ago";
        break;
      case "since": text = brief(Math.max(0, s)); break;
      case "left": text = s < 0 ? brief(-s) + " left" : brief(s) + " over its estimate"; break;
      case "eta": text = s < -1 ? "in " + brief(-s) : "any moment"; break;
      case "minute": text = pad(t.getHours()) + ":" + pad(t.getMinutes()); break;
      default:
        text = t.toDateString() === now.toDateString()
          ? pad(t.getHours()) + ":" + pad(t.getMinutes()) + ":" + pad(t.getSeconds())
          : t.getDate() + " " + months[t.getMonth()] + " " + pad(t.getHours()) + ":" + pad(t.getMinutes());
    }
    if (el.textContent !== text) el.textContent = text;
    el.title = t.toLocaleString(undefined, { dateStyle: "full", timeStyle: "long" });
  }
  function tellAll(root) { root.querySelectorAll("time[data-as]").forEach(tell); }
  tellAll(document);
  setInterval(function () { if (!document.hidden) tellAll(document); }, 1000);
  document.addEventListener("htmx:load", function (e) { tellAll(e.detail.elt); });

  // On a phone the pages are a row that scrolls: begin where the reader is.
  var here = document.querySelector("#nav [aria-current]");
  if (here && here.parentElement.scrollWidth > here.parentElement.clientWidth) {
    here.parentElement.scrollLeft = here.offsetLeft - here.parentElement.clientWidth / 2;
  }

  // A confirmation opens in front of the page it is about.
  var dialog = document.getElementById("dialog");
  document.addEventListener("htmx:afterSwap", function (e) {
    if (e.detail.target === dialog && dialog.children.length && !dialog.open) dialog.showModal();
  });
  if (dialog) {
    dialog.addEventListener("click", function (e) {
      if (e.target === dialog || e.target.closest("[data-close]")) { e.preventDefault(); dialog.close(); }
    });
  }

  // Several tasks at once: tick all, and a count that is also read aloud.
  function count() {
    document.querySelectorAll("[data-pick]").forEach(function (form) {
      var boxes = Array.prototype.slice.call(form.querySelectorAll("tbody input[name=id]"));
      var n = boxes.filter(function (b) { return b.checked; }).length;
      var say = form.querySelector("[data-picked]");
      if (say) say.textContent = n ? n + " selected" : "Tick " + (form.dataset.pick || "tasks") + " to act on several at once";
      form.querySelectorAll("[data-needs-pick]").forEach(function (b) { b.disabled = n === 0; });
      var all = form.querySelector("[data-pick-all]");
      if (all) { all.hidden = !boxes.length; all.checked = n > 0 && n === boxes.length; all.indeterminate = n > 0 && n < boxes.length; }
    });
  }
  document.addEventListener("change", function (e) {
    if (e.target.matches("[data-pick-all]")) {
      e.target.closest("[data-pick]").querySelectorAll("tbody input[name=id]").forEach(function (b) { b.checked = e.target.checked; });
    }
    count();
  });
  document.addEventListener("sm:swapped", count);
  count();

  // Menus close when the reader goes elsewhere.
  document.addEventListener("click", function (e) {
    document.querySelectorAll("details.menu[open]").forEach(function (d) { if (!d.contains(e.target)) d.open = false; });
  });
  document.addEventListener("keydown", function (e) {
    if (e.key !== "Escape") return;
    document.querySelectorAll("details.menu[open]").forEach(function (d) {
      d.open = false;
      if (d.contains(document.activeElement)) d.querySelector("summary").focus();
    });
  });

  // A log stays at its end while the reader is there.
  function logOf(el) { return el.closest ? el.closest("[data-follow]") : null; }
  var pinned = true;
  function pin() {
    document.querySelectorAll("[data-follow]").forEach(function (el) {
      while (el.childNodes.length > 200 && pinned) el.removeChild(el.firstChild); // a day of it is too much for a page
      if (pinned) el.scrollTop = el.scrollHeight;
      el.onscroll = function () { pinned = el.scrollTop + el.clientHeight >= el.scrollHeight - 8; };
    });
  }
  document.addEventListener("htmx:afterSettle", function (e) { if (logOf(e.detail.elt) || e.detail.elt.querySelector("[data-follow]")) pin(); });
  pin();

  // A row more in a form's table, without asking the server.
  document.addEventListener("click", function (e) {
    var more = e.target.closest("[data-add-row]");
    if (!more) return;
    var body = document.getElementById(more.dataset.addRow);
    var row = body.rows[body.rows.length - 1].cloneNode(true);
    row.querySelectorAll("input").forEach(function (i) { i.value = ""; i.removeAttribute("id"); });
    body.appendChild(row);
    row.querySelector("input").focus();
    e.preventDefault();
  });

  // Copying an example.
  document.addEventListener("click", function (e) {
    var b = e.target.closest("[data-copy]");
    if (!b || !navigator.clipboard) return;
    navigator.clipboard.writeText(document.getElementById(b.dataset.copy).textContent).then(function () {
      b.textContent = "Copied";
      setTimeout(function () { b.textContent = "Copy"; }, 1500);
    });
  });
})();
