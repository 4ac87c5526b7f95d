"""The style sheet and the script of the pages: no font, no library, nothing from a network."""

from markupsafe import Markup

STYLE = Markup("""
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 1400px; margin: 1.5em auto;
  padding: 0 1.5em; }
h1 { font-size: 1.5em; margin: 0 0 .2em; }
h2 { font-size: 1.15em; margin: 1.8em 0 .4em; border-top: 1px solid #ccc; padding-top: .9em; }
p { margin: .35em 0; }
p.faint, .faint { color: #666; }
svg { display: block; width: 100%; height: auto; font-family: system-ui, sans-serif; margin: .4em 0; }
dl.sum { display: flex; flex-wrap: wrap; gap: .4em 2.2em; margin: .8em 0; }
dl.sum div { min-width: 7em; }
dl.sum dt { color: #666; font-size: .82em; }
dl.sum dd { margin: 0; font-size: 1.25em; font-variant-numeric: tabular-nums; }
p.unknown { background: #fdf4dd; border-left: 4px solid #d9a425; padding: .5em .8em; }
ul { margin: .2em 0; padding-left: 1.3em; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .86em; font-variant-numeric: tabular-nums; width: 100%; }
th, td { padding: .3em .5em; text-align: left; border-bottom: 1px solid #e4e4e4; vertical-align: top; }
th { border-bottom: 2px solid #999; white-space: nowrap; }
td.n { white-space: nowrap; }
th button, button.open { font: inherit; background: none; border: 0; padding: 0; cursor: pointer; color: inherit;
  text-align: left; }
th button { font-weight: 600; }
th[aria-sort=ascending] button::after { content: " \\25B4"; }
th[aria-sort=descending] button::after { content: " \\25BE"; }
button.open { color: #1d5a9e; overflow-wrap: anywhere; min-width: 9em; }
button.open::before { content: "\\25B8 "; color: #888; }
tbody.opened button.open::before { content: "\\25BE "; }
tr.more > td { background: #f7f8fa; padding: .6em 1.2em 1em; }
table.routes { margin-top: .5em; width: auto; }
table.routes td:first-child, td.c-route { white-space: nowrap; }
tr.taken td:not(:nth-child(5)) { font-weight: 600; }
i { display: inline-block; width: .75em; height: .75em; margin-right: .4em; border-radius: 2px; }
label.find { display: block; margin: .5em 0; }
label.find input { font: inherit; width: 22em; max-width: 100%; padding: .25em .5em; }
@media print {
  @page { size: landscape; margin: 10mm; }
  body { font-size: 10.5px; margin: 0; max-width: none; padding: 0; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  label.find { display: none; }
  div.wide { overflow: visible; }
  svg, tr, dl.sum { break-inside: avoid; }
  h2 { break-after: avoid; }
  button.open { color: inherit; min-width: 0; }
}
""")

SCRIPT = Markup("""
"use strict";
const table = document.getElementById("variables");
const field = document.getElementById("find");
const shown = document.getElementById("shown");
const headings = [...table.tHead.rows[0].cells];
const bodies = [...table.tBodies];
let view = { sort: "", find: "", open: "" };

function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  view = { sort: given.get("sort") || "", find: given.get("find") || "", open: given.get("open") || "" };
  field.value = view.find;
  show();
}

function write() {
  const given = new URLSearchParams();
  for (const key in view) if (view[key]) given.set(key, view[key]);
  history.replaceState(null, "", given.size ? "#" + given : location.href.split("#")[0]);
  show();
}

function value(body, column, kind) {
  const text = body.rows[0].cells[column].dataset.sort;
  return kind === "number" ? (text === "" ? null : Number(text)) : text;
}

function order(column, down) {
  const kind = headings[column].dataset.kind;
  return (a, b) => {
    const [x, y] = [value(a, column, kind), value(b, column, kind)];
    const empty = (x === null || x === "") - (y === null || y === "");
    if (empty) return empty;
    const found = kind === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
    return down ? -found : found;
  };
}

function show() {
  const down = view.sort.startsWith("-"), key = view.sort.replace("-", "");
  const column = headings.findIndex((heading) => heading.dataset.key === key);
  const sorted = column < 0 ? bodies : [...bodies].sort(order(column, down));
  table.append(...sorted);
  headings.forEach((heading, place) =>
    heading.setAttribute("aria-sort", place !== column ? "none" : down ? "descending" : "ascending"));
  const words = view.find.toLowerCase().split(" ").filter(Boolean);
  let count = 0;
  for (const body of bodies) {
    body.hidden = !words.every((word) => body.dataset.find.includes(word));
    count += !body.hidden;
    const opened = body.dataset.name === view.open;
    body.rows[1].hidden = !opened;
    body.classList.toggle("opened", opened);
  }
  shown.textContent = count + " of " + bodies.length;
}

headings.forEach((heading) => heading.addEventListener("click", () => {
  const key = heading.dataset.key, first = heading.dataset.kind === "number" ? "-" + key : key;
  const other = first === key ? "-" + key : key;
  view.sort = view.sort === first ? other : view.sort === other ? "" : first;
  write();
}));
bodies.forEach((body) => body.querySelector("button.open").addEventListener("click", () => {
  view.open = body.dataset.name === view.open ? "" : body.dataset.name;
  write();
}));
field.addEventListener("input", () => { view.find = field.value; write(); });
window.addEventListener("hashchange", read);
read();
""")
