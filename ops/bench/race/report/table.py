"""A report as text for a terminal, and as Markdown for the documentation."""

from __future__ import annotations

from ops.bench.race.report.sheets import Differences, Row, Sheet, notes, sheets
from ops.bench.race.results import Results


def table_text(results: Results, differences: Differences = ()) -> str:
    """Returns all tables, aligned, followed by notes and by what the command could not measure.

    Args:
        results: the results.
        differences: for each race, system -> largest difference of its losses from the others'.
    """
    tables = [sheet for family in sheets(results, differences) for sheet in family]
    blocks = [_text(sheet) for sheet in tables]
    if notes(tables):
        blocks.append("\n".join(["columns:", *(f"  {line}" for line in notes(tables))]))
    if results.shortfalls:
        blocks.append("\n".join(["not shown here:", *(f"  {line}" for line in results.shortfalls)]))
    return "\n\n".join(blocks) + "\n"


def markdown_text(results: Results, differences: Differences = ()) -> str:
    """Returns the same as sections of a document: command, machine and date, then a heading per race."""
    blocks = [f"```\n{results.command}\n```", f"{results.machine}, {results.date}."]
    tables = [sheet for family in sheets(results, differences) for sheet in family]
    blocks += [_markdown(sheet) for sheet in tables]
    if notes(tables):
        blocks.append("\n".join(["Columns:", "", *(f"- {_escaped(line)}" for line in notes(tables))]))
    if results.shortfalls:
        blocks.append("\n".join(["Not shown here:", "", *(f"- {_escaped(line)}" for line in results.shortfalls)]))
    return "\n\n".join(blocks) + "\n"


def _text(sheet: Sheet) -> str:
    named = [row for row in sheet.rows if not row.problem]
    grid = [sheet.columns, *((row.name, *row.cells) for row in named)]
    widths = [max(len(cells[i]) for cells in grid) for i in range(len(sheet.columns))]
    widths[0] = max(len(name) for name in (sheet.columns[0], *(row.name for row in sheet.rows)))
    lines = [sheet.title, *(f"  {line}" for line in sheet.above)]
    lines += [_aligned(sheet.columns, widths), "  ".join("-" * width for width in widths)]
    for row in sheet.rows:
        failed = f"{row.name.ljust(widths[0])}  failed: {row.problem}"
        lines.append(failed if row.problem else _aligned((row.name, *row.cells), widths))
    return "\n".join(lines)


def _aligned(cells: tuple[str, ...], widths: list[int]) -> str:
    """Aligns names to the left, figures to the right."""
    figures = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([cells[0].ljust(widths[0]), *figures]).rstrip()


def _markdown(sheet: Sheet) -> str:
    blocks = [f"### {_escaped(sheet.title)}"]
    if sheet.above:
        blocks.append("\n".join(f"- {_escaped(line)}" for line in sheet.above))
    lines = [_piped(sheet.columns), _piped(("---", *("---:" for _ in sheet.columns[1:])))]
    blocks.append("\n".join([*lines, *(_piped(_cells(row, len(sheet.columns))) for row in sheet.rows)]))
    return "\n\n".join(blocks)


def _cells(row: Row, count: int) -> tuple[str, ...]:
    if not row.problem:
        return (row.name, *row.cells)
    return (row.name, f"failed: {row.problem}", *("" for _ in range(count - 2)))


def _piped(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    """Escapes text so that Markdown shows it verbatim."""
    for sign in "\\|*_<`[":
        text = text.replace(sign, f"\\{sign}")
    return text
