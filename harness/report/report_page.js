"use strict";
// A click on a column's head sorts by it, a second one turns the order round; empty cells stay last.
for (const button of document.querySelectorAll("thead button")) {
  button.addEventListener("click", () => {
    const head = button.parentElement, rows = head.closest("table").tBodies[0];
    const up = head.getAttribute("aria-sort") !== "ascending";
    for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[head.cellIndex].dataset.key ?? "";
    const order = (a, b) => (head.dataset.numbers ? a - b : a.localeCompare(b, "en", { numeric: true }));
    const compare = (a, b) => {
      if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
      return up ? order(key(a), key(b)) : order(key(b), key(a));
    };
    rows.append(...[...rows.rows].sort(compare));
  });
}

// What needs a script is hidden until there is one; a filter for a few rows is none.
for (const tools of document.querySelectorAll(".tools")) {
  const section = tools.parentElement, input = tools.querySelector("input"), all = tools.querySelector(".all");
  if (all) {
    const cards = [...section.querySelectorAll(".card")];
    tools.hidden = cards.length < 2;
    all.addEventListener("click", () => {
      const open = cards.some((card) => !card.open);
      for (const card of cards) card.open = open;
      all.textContent = open ? "Close all" : "Open all";
    });
  } else {
    const rows = [...section.querySelectorAll("tbody tr")];
    tools.hidden = rows.length < 8;
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/);
      for (const row of rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      const left = rows.filter((row) => !row.hidden).length;
      tools.querySelector("output").textContent = input.value ? `${left} of ${rows.length}` : "";
    });
  }
}

const theme = document.getElementById("theme"), system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
const told = () => (theme.textContent = isDark() ? "Light colours" : "Dark colours");
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  told();
});
system.addEventListener("change", told);
theme.hidden = false;
told();

// A link to a card opens it, and so does printing.
const reveal = () => {
  const place = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (place && place.matches("details")) place.open = true;
};
addEventListener("hashchange", reveal);
addEventListener("beforeprint", () => document.querySelectorAll(".card").forEach((card) => (card.open = true)));
document.addEventListener("click", (event) => event.target.closest?.("a") && setTimeout(reveal));
reveal();
