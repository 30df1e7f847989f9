// The end of a job's log, as it grows: the REST API streams it, a page keeps a bounded piece of it. What is printed
// faster than anybody reads is skipped, and said so.
(function () {
  "use strict";
  var most = 200000; // characters a page keeps; what was before is on the log's own page
  var flood = 1000000; // characters within a second: more than that is not followed piece by piece
  var drawEvery = 200; // ms
  var hiddenFor = 30000; // ms out of sight before the connection is given back

  function follow(el) {
    var next = Number(el.dataset.next) || 0;
    var state = document.getElementById("log-state");
    var again = document.getElementById("log-again");
    var source = null, timer = 0, rest = 0, drawing = 0, tries = 0, ended = false;
    var length = el.textContent.length, waiting = "", second = 0, heard = 0;

    function say(text) { if (state && state.textContent !== text) state.textContent = text; }

    // Drawing costs by how long the piece is that is kept, so pieces are collected.
    function draw() {
      drawing = 0;
      if (!waiting) return;
      var pinned = el.scrollTop + el.clientHeight >= el.scrollHeight - 8;
      el.appendChild(document.createTextNode(waiting));
      length += waiting.length;
      waiting = "";
      var keep = pinned ? most : 3 * most; // who reads further up is not pulled away at once
      while (length > keep && el.firstChild) {
        var first = el.firstChild, over = length - keep;
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

    function append(text) {
      waiting += text;
      if (waiting.length > most) waiting = waiting.slice(-most);
      if (!drawing) drawing = setTimeout(draw, drawEvery);
    }

    function close() {
      if (source) source.close();
      source = null;
    }

    function later(ms) {
      clearTimeout(timer);
      timer = setTimeout(open, ms);
    }

    // Goes on at the end, some seconds later.
    function skip() {
      close();
      say("it prints faster than can be shown");
      fetch(el.dataset.log + "?offset=-20000&limit=20000").then(function (r) { return r.ok ? r.json() : Promise.reject(r.status); }).then(function (piece) {
        append("\n[… skipped: it prints faster than can be shown …]\n" + piece.text);
        next = piece.next;
      }).catch(function () {}).then(function () { later(3000); });
    }

    function open() {
      clearTimeout(timer);
      close();
      if (ended) return;
      heard = 0;
      second = Date.now();
      source = new EventSource(el.dataset.log + "?follow=true&offset=" + next);
      source.onopen = function () { tries = 0; say(length || waiting ? "live" : "waits for it to print"); if (again) again.hidden = true; };
      source.addEventListener("log", function (e) {
        var piece = JSON.parse(e.data), now = Date.now();
        next = piece.next; // another attempt begins anew
        append(piece.text);
        say("live");
        if (now - second > 1000) { second = now; heard = 0; }
        heard += piece.text.length;
        if (heard > flood) skip();
      });
      source.addEventListener("end", function () {
        ended = true;
        close();
        say("its end");
      });
      source.onerror = function () {
        if (ended) return;
        close();
        if (again) again.hidden = false;
        say(tries ? "not live: it cannot be read right now, tried again" : "waits for it to print");
        later(Math.min(1000 * Math.pow(2, tries++), 15000));
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
        close();
        say("paused");
      }, hiddenFor);
    });
    window.addEventListener("pagehide", close);
    window.addEventListener("pageshow", function (e) { if (e.persisted) open(); });
    open();
  }

  document.querySelectorAll("[data-log]").forEach(follow);
})();
