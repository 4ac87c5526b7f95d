"""A report as one HTML page that needs nothing else: no script, no font, nothing from a network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from ops.bench.race.report.pictures import colours, family_svg
from ops.bench.race.report.sheets import Differences, Row, Sheet, notes, sheets
from ops.bench.race.results import Results
from ops.bench.race.scaling import families, systems

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1240px; margin: 2em auto; padding: 0 1.5em; }
h1 { font-size: 1.5em; margin-bottom: .2em; }
h2 { font-size: 1.2em; margin: 2.2em 0 .3em; border-top: 1px solid #ccc; padding-top: 1em; }
h3 { font-size: 1em; margin: 1.6em 0 .2em; }
pre { background: #f4f4f4; padding: .6em .8em; white-space: pre-wrap; overflow-wrap: anywhere; }
ul { margin: .3em 0; padding-left: 1.3em; }
img { width: 100%; height: auto; margin: .6em 0; }
div.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .84em; font-variant-numeric: tabular-nums; margin: .5em 0; }
th, td { padding: .25em .5em; text-align: right; border-bottom: 1px solid #e2e2e2; }
td { white-space: nowrap; }
th { border-bottom: 2px solid #999; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
td.failed { text-align: left; color: #a02020; white-space: normal; }
i { display: inline-block; width: .75em; height: .75em; margin-right: .5em; }
tr.ours { background: #eef4fb; }
@media print {
  @page { size: landscape; margin: 12mm; }
  body { font-size: 11px; margin: 0; max-width: none; padding: 0; }
  * { print-color-adjust: exact; }
  section.race, img, tr { break-inside: avoid; }
  div.wide { overflow: visible; }
}
"""


def write_html(results: Results, path: Path, differences: Differences = ()) -> None:
    """Writes the page.

    Args:
        results: what was measured.
        path: of the HTML file.
        differences: for each race, by system the largest difference of its losses from the others'.
    """
    colour_by_system = colours(systems(results.races))
    parts = []
    of_families = sheets(results, differences)
    for family, tables in zip(families(results.races), of_families, strict=True):
        races = [results.races[index] for index in family]
        parts.append(f"<h2>{escape(races[0].model)}</h2>")
        parts.append(_picture(family_svg(races, colour_by_system), f"Step time by system, {races[0].model}"))
        # The throughputs first: they are the sum of what the tables of the races say.
        parts += [_section(sheet, colour_by_system) for sheet in (*tables[len(races) :], *tables[: len(races)])]
    explained = notes([sheet for tables in of_families for sheet in tables])
    if explained:
        parts.append(f"<h2>Columns</h2>{_list(explained)}")
    Path(path).write_text(_page(results, parts), encoding="utf-8")


def _page(results: Results, parts: Sequence[str]) -> str:
    models = ", ".join(dict.fromkeys(race.model for race in results.races))
    title = escape(f"Race: {models}" if models else "Race")
    head = [
        "<!DOCTYPE html>",
        '<html lang="en">',
        f'<head><meta charset="utf-8"><title>{title}</title>',
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>',
        f"<body><h1>{title}</h1>",
        f"<p>{escape(results.machine)}, {escape(results.date)}</p>",
        f"<pre>{escape(results.command)}</pre>",
    ]
    if results.shortfalls:
        head.append(f"<p>Not shown here:</p>{_list(results.shortfalls)}")
    return "\n".join([*head, *parts, "</body></html>"]) + "\n"


def _picture(svg: str, words: str) -> str:
    data = base64.b64encode(svg.encode()).decode()
    return f'<img alt="{escape(words)}" src="data:image/svg+xml;base64,{data}">'


def _section(sheet: Sheet, colour_by_system: dict[str, str]) -> str:
    headings = "".join(f"<th>{escape(column)}</th>" for column in sheet.columns)
    rows = "\n".join(_row(row, len(sheet.columns), colour_by_system) for row in sheet.rows)
    table = f"<table><thead><tr>{headings}</tr></thead><tbody>\n{rows}\n</tbody></table>"
    above = f"<h3>{escape(sheet.title)}</h3>{_list(sheet.above)}"
    return f'<section class="race">{above}\n<div class="wide">{table}</div></section>'


def _row(row: Row, count: int, colour_by_system: dict[str, str]) -> str:
    colour = colour_by_system.get(row.name)
    square = f'<i style="background:{colour}"></i>' if colour else ""
    name = f"<td>{square}{escape(row.name)}</td>"
    if row.problem:
        return f'<tr>{name}<td class="failed" colspan="{count - 1}">failed: {escape(row.problem)}</td></tr>'
    ours = ' class="ours"' if row.name.startswith("parallax") else ""
    return f"<tr{ours}>{name}{''.join(f'<td>{escape(cell)}</td>' for cell in row.cells)}</tr>"


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""
