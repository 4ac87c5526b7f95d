"""Formats the HTML table of a plan's variables, with the details of each in an expandable row."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from parallax.plans.plan import NO_ROUTE, Plan, RouteCost, VariablePlan
from parallax.plans.prediction import CostTerm
from parallax.report.html.svg import COLOUR_BY_ROUTE, NONE
from parallax.report.plan_table import describe_holders, flip_texts, shape_text, value_bytes
from parallax.report.text import bytes_text, ms_text, pluralize

COLUMNS = (
    ("variable", "variable", ""),
    ("class", "class", ""),
    ("size", "shape", "number"),
    ("touched", "touched", "number"),
    ("route", "route", ""),
    ("owners", "rows held by", "number"),
    ("bytes", "sent/step", "number"),
    ("ms", "ms/step", "number"),
    ("next", "next best", "number"),
    ("flip", "another route", ""),
    ("reason", "reason", ""),
)
"""The column's key for sorting in the page's URL, its heading, and whether it is numeric."""

SHOWN_OWNERS = 16

_WHAT = {"rounds": "rounds that wait", "link": "on the busiest link", "beside": "copies and checks"}


def table(plan: Plan) -> Markup:
    """All variables, trained ones first; a row's details follow it, initially hidden."""
    headings = Markup().join(
        Markup('<th data-key="{}" data-kind="{}"><button type="button">{}</button></th>').format(
            key, kind or "text", heading
        )
        for key, heading, kind in COLUMNS
    )
    ordered = sorted(plan.variables, key=lambda v: (v.route == NO_ROUTE, v.name))
    rows = Markup("\n").join(_row(plan, v) for v in ordered)
    return Markup('<table id="variables"><thead><tr>{}</tr></thead>\n{}\n</table>').format(headings, rows)


def _row(plan: Plan, variable: VariablePlan) -> Markup:
    """One `tbody` per variable, so that its details stay with it however the table is sorted."""
    cells = Markup().join(
        Markup('<td data-sort="{}" class="{}">{}</td>').format(value, "n" if kind else f"c-{key}", shown)
        for (key, _, kind), (value, shown) in zip(COLUMNS, _cells(plan, variable), strict=True)
    )
    search_text = " ".join((variable.name, variable.cls.value, variable.route, variable.reason)).lower()
    return Markup(
        '<tbody class="variable" data-name="{}" data-find="{}"><tr>{}</tr>'
        '<tr class="more" hidden><td colspan="{}">{}</td></tr></tbody>'
    ).format(variable.name, search_text, cells, len(COLUMNS), _details(plan, variable))


def _cells(plan: Plan, variable: VariablePlan) -> list[tuple[str | float, str]]:
    """(sort key, displayed text) for each column; cells without a sort key come last."""
    shape = shape_text(variable)
    trained = variable.route != NO_ROUTE
    sent, seconds, second = variable.cost.sent_bytes, variable.cost.seconds, variable.runner_up
    step_s = plan.prediction.step_s
    percent = f" ({100 * second.more_s / step_s:.2g} %)" if second is not None and step_s else ""
    name = Markup('<button type="button" class="open">{}</button>').format(variable.name)
    flips = flip_texts(variable.flips)
    return [
        (variable.name, name),
        (variable.cls.value, variable.cls.value),
        (value_bytes(variable), shape),
        (_share(variable), _format_touched(variable)),
        (variable.route, _color_route(variable.route)),
        (len([rows for rows in variable.owner_rows if rows]), describe_holders(variable)),
        ((sent if sent is not None else -1) if trained else "", bytes_text(sent) if trained else ""),
        (seconds if trained and seconds is not None else "", _ms(seconds) if trained else ""),
        (
            "" if second is None else second.more_s,
            "" if second is None else f"{second.route} +{ms_text(second.more_s)}{percent}",
        ),
        ("; ".join(flips), Markup("<br>").join(flips)),
        (variable.reason, variable.reason),
    ]


def _color_route(route: str) -> Markup:
    """A route with its colour."""
    return Markup('<i style="background:{}"></i>{}').format(COLOUR_BY_ROUTE[route], route)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else ms_text(seconds).removesuffix(" ms")


def _share(variable: VariablePlan) -> str | float:
    if variable.touched_rows is None or not variable.shape:
        return ""
    return variable.touched_rows / max(variable.shape[0], 1)


def _format_touched(variable: VariablePlan) -> str:
    share = _share(variable)
    if isinstance(share, str):
        return ""
    most = "" if variable.touched_is_measured else "\u2264 "
    return f"{most}{variable.touched_rows} ({100 * share:.2g} %)"


def _details(plan: Plan, variable: VariablePlan) -> Markup:
    what = Markup("<p><b>{}</b>: {}, {} {}, {}</p>")
    size, cls = bytes_text(value_bytes(variable)), variable.cls.value
    parts = [what.format(variable.name, cls, list(variable.shape), variable.dtype, size)]
    if variable.evidence:
        parts.append(Markup("<p>It is {} because</p>{}").format(cls, make_list(variable.evidence)))
    if variable.slots:
        parts.append(Markup("<p>Slots: {}.</p>").format(", ".join(variable.slots)))
    owners = owner_texts(plan, variable)
    if owners:
        parts.append(Markup("<p>Who holds its rows</p>{}").format(make_list(owners)))
    if variable.route != NO_ROUTE:
        parts.append(_routes(variable))
    return Markup().join(parts)


def owner_texts(plan: Plan, variable: VariablePlan) -> list[str]:
    """The number of rows at each owner, one line per owner; for many owners the first and the range."""
    if not variable.owner_rows:
        return []
    of_row = value_bytes(variable) / max(sum(variable.owner_rows), 1)
    hosts = plan.layout.host_by_rank
    lines = []
    for owner, rows in enumerate(variable.owner_rows[:SHOWN_OWNERS]):
        host = plan.servers[owner] if variable.servers else hosts[owner]
        who = f"server {owner}" if variable.servers else f"worker {owner}"
        lines.append(f"{who} on host {host}: {pluralize(rows, 'row')}, {bytes_text(round(rows * of_row))}")
    if len(variable.owner_rows) > SHOWN_OWNERS:
        least, most = min(variable.owner_rows), max(variable.owner_rows)
        lines.append(f"and {len(variable.owner_rows) - SHOWN_OWNERS} more; of all, from {least} to {most} rows each")
    return lines


def _routes(variable: VariablePlan) -> Markup:
    """All routes side by side, each with its cost term by term."""
    rows = []
    for cost in (variable.cost, *variable.rejected):
        is_chosen = cost is variable.cost
        note = variable.reason if is_chosen else cost.note
        sent, seconds = bytes_text(cost.sent_bytes), _ms(cost.seconds) or "?"
        numbers = Markup("<td class=n>{}</td><td class=n>{}</td><td class=n>{}</td>").format(sent, cost.rounds, seconds)
        rows.append(
            Markup("<tr{}><td>{}</td>{}<td>{}</td><td>{}</td></tr>").format(
                Markup(" class=taken") if is_chosen else NONE, _color_route(cost.route), numbers, _terms(cost), note
            )
        )
    return Markup(
        "<table class=routes><thead><tr><th>route</th><th>sent/step</th><th>rounds</th><th>ms it adds</th>"
        "<th>by itself it would take</th><th></th></tr></thead><tbody>{}</tbody></table>"
    ).format(Markup().join(rows))


def _terms(cost: RouteCost) -> Markup:
    return Markup("<br>").join(_term(term) for term in cost.terms)


def _term(term: CostTerm) -> str:
    carried = f" ({bytes_text(term.link_bytes)})" if term.link_bytes else ""
    return f"{ms_text(term.seconds)} {term.phase}: {_WHAT[term.what]}{carried}"


def make_list(lines: Sequence[str]) -> Markup:
    """Lines as a list; empty without any."""
    items = Markup().join(Markup("<li>{}</li>").format(line) for line in lines)
    return Markup("<ul>{}</ul>").format(items) if lines else NONE
