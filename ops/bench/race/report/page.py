"""A report as one self-contained HTML page: no script, no font, nothing from a network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from ops.bench.race.report.pictures import colours, family_svg
from ops.bench.race.report.sheets import Differences, Row, Sheet, notes, sheets
from ops.bench.race.results import Results
from ops.bench.race.scaling import families, systems
from parallax.report.html.table import make_list

_STYLE = Markup("""
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
""")


def write_html(results: Results, path: Path, differences: Differences = ()) -> None:
    """Writes the page.

    Args:
        results: the results.
        path: the HTML file.
        differences: for each race, system -> largest difference of its losses from the others'.
    """
    colour_by_system = colours(systems(results.races))
    parts = []
    of_families = sheets(results, differences)
    for family, tables in zip(families(results.races), of_families, strict=True):
        races = [results.races[index] for index in family]
        parts.append(Markup("<h2>{}</h2>").format(races[0].model))
        parts.append(_picture(family_svg(races, colour_by_system), f"Step time by system, {races[0].model}"))
        # The throughputs first: they summarize the tables of the races.
        parts += [_section(sheet, colour_by_system) for sheet in (*tables[len(races) :], *tables[: len(races)])]
    explained = notes([sheet for tables in of_families for sheet in tables])
    if explained:
        parts.append(Markup("<h2>Columns</h2>{}").format(make_list(explained)))
    Path(path).write_text(_page(results, parts), encoding="utf-8")


def _page(results: Results, parts: Sequence[Markup]) -> str:
    models = ", ".join(dict.fromkeys(race.model for race in results.races))
    title = f"Race: {models}" if models else "Race"
    head = Markup(
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{0}</title>\n'
        '<meta name="viewport" content="width=device-width"><style>{1}</style></head>\n'
        "<body><h1>{0}</h1>\n<p>{2}, {3}</p>\n<pre>{4}</pre>"
    ).format(title, _STYLE, results.machine, results.date, results.command)
    missing = Markup("<p>Not shown here:</p>{}").format(make_list(results.shortfalls)) if results.shortfalls else None
    return str(Markup("\n").join([head, *filter(None, [missing, *parts]), Markup("</body></html>\n")]))


def _picture(svg: str, words: str) -> Markup:
    data = base64.b64encode(svg.encode()).decode()
    return Markup('<img alt="{}" src="data:image/svg+xml;base64,{}">').format(words, data)


def _section(sheet: Sheet, colour_by_system: dict[str, str]) -> Markup:
    headings = Markup().join(Markup("<th>{}</th>").format(column) for column in sheet.columns)
    rows = Markup("\n").join(_row(row, len(sheet.columns), colour_by_system) for row in sheet.rows)
    return Markup(
        '<section class="race"><h3>{}</h3>{}\n<div class="wide"><table><thead><tr>{}</tr></thead><tbody>\n{}\n'
        "</tbody></table></div></section>"
    ).format(sheet.title, make_list(sheet.above), headings, rows)


def _row(row: Row, count: int, colour_by_system: dict[str, str]) -> Markup:
    colour = colour_by_system.get(row.name)
    square = Markup('<i style="background:{}"></i>').format(colour) if colour else ""
    name = Markup("<td>{}{}</td>").format(square, row.name)
    if row.problem:
        failed = Markup('<tr>{}<td class="failed" colspan="{}">failed: {}</td></tr>')
        return failed.format(name, count - 1, row.problem)
    ours = Markup(' class="ours"') if row.name.startswith("parallax") else ""
    cells = Markup().join(Markup("<td>{}</td>").format(cell) for cell in row.cells)
    return Markup("<tr{}>{}{}</tr>").format(ours, name, cells)
