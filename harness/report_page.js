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
