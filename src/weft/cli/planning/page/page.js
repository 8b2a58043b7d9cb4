// Tips under the pointer and the arrow keys; legends that bring out one colour. Nothing is fetched.
"use strict";
(() => {
  const tip = document.getElementById("tip");
  const place = (x, y) => {
    const box = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 12, innerWidth - box.width - 8))}px`;
    tip.style.top = `${y + 18 + box.height > innerHeight ? y - box.height - 10 : y + 18}px`;
  };
  const show = (mark, x, y) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    place(x, y);
  };
  const hide = () => { tip.hidden = true; };
  for (const chart of document.querySelectorAll("svg.chart")) {
    const marks = [...chart.querySelectorAll(".mark")];
    let at = -1;
    const go = (next) => {
      if (marks[at]) marks[at].classList.remove("at");
      at = Math.max(0, Math.min(marks.length - 1, next));
      marks[at].classList.add("at");
      const box = marks[at].getBoundingClientRect();
      show(marks[at], box.left + box.width / 2, box.top + box.height / 2);
    };
    const leave = () => {
      if (marks[at]) marks[at].classList.remove("at");
      hide();
    };
    chart.addEventListener("pointermove", (event) => {
      const mark = event.target.closest(".mark");
      if (mark) show(mark, event.clientX, event.clientY); else hide();
    });
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", leave);
    chart.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: marks.length - 1 };
      if (event.key === "Escape") leave();
      if (!marks.length || !(event.key in moves)) return;
      event.preventDefault();
      go(moves[event.key]);
    });
  }
  for (const key of document.querySelectorAll("[data-colour]")) {
    const figure = key.closest("section");
    const only = (on) => {
      for (const chart of figure.querySelectorAll("svg.chart")) chart.classList.toggle("dim", on);
      for (const mark of figure.querySelectorAll(`svg .${key.dataset.colour}`)) mark.classList.toggle("bright", on);
    };
    key.addEventListener("pointerenter", () => only(true));
    key.addEventListener("pointerleave", () => only(false));
    key.addEventListener("focus", () => only(true));
    key.addEventListener("blur", () => only(false));
  }
})();
