"use strict";
// Pages by the address's fragment, sorting and filtering of tables, and reading of tokens by keyboard.
// Without this script the page holds everything, one below the other.

const pages = [...document.querySelectorAll(".page")];

function route(event) {
  const name = decodeURIComponent(location.hash.slice(1)) || "overview";
  if (name === "main") return;
  const all = name === "all";
  const target = all ? pages[0] : document.getElementById(name) || pages[0];
  const page = target.closest(".page") || pages[0];
  document.body.classList.toggle("all", all);
  for (const other of pages) other.classList.toggle("current", other === page);
  const section = all ? "" : navigationName(page);
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === "#" + section) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${page.querySelector("h1").textContent.trim()} – SAO reproduction`;
  target.scrollIntoView();
  if (target === page) window.scrollTo(0, 0);
  if (event) {
    const heading = target.querySelector("h1, h2") || target;
    heading.tabIndex = -1;
    heading.focus({ preventScroll: true });
  }
}

function navigationName(page) {
  if (page.id.startsWith("claim-")) return "claims";
  return page.id.startsWith("row-") ? "rows" : page.id;
}

function makeSortable(table) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const descending = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortRows(table, column, descending ? -1 : 1);
    });
  });
}

// Cells without a value stay last, whichever the direction.
function sortRows(table, column, direction) {
  const body = table.tBodies[0];
  const entries = [...body.rows].map((row) => ({ row, text: row.cells[column].textContent.trim() }));
  const known = entries.filter((entry) => entry.text !== "–");
  const numeric = known.every((entry) => /^[+-]?[\d.]/.test(entry.text));
  const collator = new Intl.Collator("en", { numeric: true });
  known.sort((one, other) => direction * (numeric
    ? parseFloat(one.text.replace(/,/g, "")) - parseFloat(other.text.replace(/,/g, ""))
    : collator.compare(one.text, other.text)));
  body.append(...known.map((entry) => entry.row));
  body.append(...entries.filter((entry) => entry.text === "–").map((entry) => entry.row));
}

function makeFilter(table) {
  const box = document.createElement("p");
  box.className = "filter";
  const label = document.createElement("label");
  const input = document.createElement("input");
  const count = document.createElement("span");
  input.type = "search";
  count.setAttribute("role", "status");
  label.append("Filter lines", input);
  box.append(label, count);
  table.closest(".scroll").before(box);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shown += 1;
    }
    count.textContent = words.length ? `${shown} of ${table.tBodies[0].rows.length} lines` : "";
  });
}

// One stop of the tab key a trajectory; arrow keys go from action token to action token.
function makeReadable(strip) {
  const tokens = [...strip.querySelectorAll("b")];
  if (!tokens.length) return;
  const reading = document.createElement("p");
  reading.className = "reading";
  reading.setAttribute("role", "status");
  strip.before(reading);
  strip.tabIndex = 0;
  strip.setAttribute("role", "group");
  strip.setAttribute("aria-label", "Tokens of the trajectory; arrow keys read the numbers of each action token");
  let place = -1;
  const read = (next) => {
    if (place >= 0) tokens[place].classList.remove("chosen");
    place = Math.min(Math.max(next, 0), tokens.length - 1);
    tokens[place].classList.add("chosen");
    reading.textContent = tokens[place].title;
  };
  reading.textContent = "Point at an action token, or focus the tokens and use the arrow keys.";
  strip.addEventListener("keydown", (event) => {
    const moves = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: tokens.length - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    read(moves[event.key]);
  });
  strip.addEventListener("pointerover", (event) => {
    const next = tokens.indexOf(event.target.closest("b"));
    if (next >= 0) read(next);
  });
}

for (const table of document.querySelectorAll("table[data-sortable]")) makeSortable(table);
for (const table of document.querySelectorAll("table[data-filtered]")) makeFilter(table);
for (const strip of document.querySelectorAll("[data-tokens]")) makeReadable(strip);
document.body.classList.add("routed");
window.addEventListener("hashchange", route);
route();
