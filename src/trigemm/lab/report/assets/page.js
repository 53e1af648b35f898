"use strict";

// Charts: each element with a specification beside it, drawn when it is first seen: what is folded has no width before.
function drawChart(element) {
  const spec = JSON.parse(element.nextElementSibling.textContent);
  const { role, ariaLabel } = element; // Vega puts its own in their place
  vegaEmbed(element, spec, { renderer: "svg", actions: false, tooltip: { theme: "page" } }).then(() => {
    Object.assign(element, { role, ariaLabel });
    element.querySelector("svg").setAttribute("aria-hidden", "true"); // the element around it has the text
    element.dataset.drawn = "";
  });
}

document.querySelectorAll("[data-chart]").forEach((element) => {
  const folded = element.closest("details");
  if (folded) folded.addEventListener("toggle", () => drawChart(element), { once: true });
  else drawChart(element);
});

// Tables: a heading is a button that sorts by its column, numbers by their value, up and then down.
document.querySelectorAll("table[data-sortable]").forEach((table) => {
  table.querySelectorAll("th button").forEach((button, column) => {
    button.addEventListener("click", () => {
      const heading = button.parentElement, body = table.tBodies[0];
      const falling = heading.getAttribute("aria-sort") === "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const compare = (x, y) => {
        if (x === "" || y === "") return (x === "") - (y === ""); // what has no value stays at the end
        const rises = x.localeCompare(y, "en", { numeric: true });
        const numbers = Number(x) - Number(y);
        return (falling ? -1 : 1) * (Number.isNaN(numbers) ? rises : numbers);
      };
      body.append(...[...body.rows].sort((a, b) => compare(key(a), key(b))));
    });
  });
});
