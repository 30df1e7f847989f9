// The jump box: "/" goes there, arrow keys walk through what it found, Escape leaves.
(function () {
  "use strict";
  var box = document.getElementById("jump");
  var found = document.getElementById("jump-found");
  if (!box || !found) return;

  function typing(el) {
    return el && (el.isContentEditable || /^(input|textarea|select)$/i.test(el.tagName));
  }
  document.addEventListener("keydown", function (e) {
    if (e.key === "/" && !e.ctrlKey && !e.metaKey && !e.altKey && !typing(e.target) && !document.querySelector("dialog[open]")) {
      e.preventDefault();
      box.focus();
      box.select();
    }
  });
  box.form.addEventListener("keydown", function (e) {
    var links = Array.prototype.slice.call(found.querySelectorAll("a"));
    var at = links.indexOf(document.activeElement);
    if (e.key === "Escape") {
      found.replaceChildren();
      document.activeElement.blur();
    } else if (e.key === "ArrowDown" && links.length) {
      e.preventDefault();
      links[Math.min(at + 1, links.length - 1)].focus();
    } else if (e.key === "ArrowUp" && at >= 0) {
      e.preventDefault();
      (at === 0 ? box : links[at - 1]).focus();
    }
  });
})();
