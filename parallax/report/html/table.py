"""The table of a plan's variables in HTML, each with all that is known of it behind it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from parallax.plans.plan import NO_ROUTE, Plan, RouteCost, VariablePlan
from parallax.plans.prediction import CostTerm
from parallax.report.html.svg import COLOUR_BY_ROUTE
from parallax.report.text import bytes_text, counted, flip_texts, held_by, ms_text, shape_text, value_bytes

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
"""The key by which the page's address sorts, the heading, and whether it is a number."""

SHOWN_OWNERS = 16

_WHAT = {"rounds": "rounds that wait", "link": "on the busiest link", "beside": "copies and checks"}


def table(plan: Plan) -> str:
    """All variables, trained ones first; a row's details follow it, hidden until asked for."""
    headings = "".join(
        f'<th data-key="{key}" data-kind="{kind or "text"}"><button type="button">{escape(heading)}</button></th>'
        for key, heading, kind in COLUMNS
    )
    ordered = sorted(plan.variables, key=lambda v: (v.route == NO_ROUTE, v.name))
    rows = "\n".join(_row(plan, v) for v in ordered)
    return f'<table id="variables"><thead><tr>{headings}</tr></thead>\n{rows}\n</table>'


def _row(plan: Plan, variable: VariablePlan) -> str:
    """One `tbody` a variable, so that its details stay with it however the table is sorted."""
    cells = "".join(
        f'<td data-sort="{escape(str(value))}" class="{"n" if kind else "c-" + key}">{shown}</td>'
        for (key, _, kind), (value, shown) in zip(COLUMNS, _cells(plan, variable), strict=True)
    )
    found = escape(" ".join((variable.name, variable.cls.value, variable.route, variable.reason)).lower())
    return (
        f'<tbody class="variable" data-name="{escape(variable.name)}" data-find="{found}"><tr>{cells}</tr>'
        f'<tr class="more" hidden><td colspan="{len(COLUMNS)}">{_details(plan, variable)}</td></tr></tbody>'
    )


def _cells(plan: Plan, variable: VariablePlan) -> list[tuple[str | float, str]]:
    """(what is sorted by, what is shown) for each column; nothing to sort by comes last."""
    shape = shape_text(variable)
    trained = variable.route != NO_ROUTE
    sent, seconds, second = variable.cost.sent_bytes, variable.cost.seconds, variable.runner_up
    step_s = plan.prediction.step_s
    percent = f" ({100 * second.more_s / step_s:.2g} %)" if second is not None and step_s else ""
    mark = f'<i style="background:{COLOUR_BY_ROUTE[variable.route]}"></i>'
    return [
        (variable.name, f'<button type="button" class="open">{escape(variable.name)}</button>'),
        (variable.cls.value, escape(variable.cls.value)),
        (value_bytes(variable), escape(shape)),
        (_share(variable), escape(_touched(variable))),
        (variable.route, f"{mark}{escape(variable.route)}"),
        (len([rows for rows in variable.owner_rows if rows]), escape(held_by(variable))),
        ((sent if sent is not None else -1) if trained else "", bytes_text(sent) if trained else ""),
        (seconds if trained and seconds is not None else "", _ms(seconds) if trained else ""),
        (
            "" if second is None else second.more_s,
            "" if second is None else escape(f"{second.route} +{ms_text(second.more_s)}{percent}"),
        ),
        ("; ".join(flip_texts(variable.flips)), "<br>".join(escape(t) for t in flip_texts(variable.flips))),
        (variable.reason, escape(variable.reason)),
    ]


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else ms_text(seconds).removesuffix(" ms")


def _share(variable: VariablePlan) -> str | float:
    if variable.touched_rows is None or not variable.shape:
        return ""
    return variable.touched_rows / max(variable.shape[0], 1)


def _touched(variable: VariablePlan) -> str:
    share = _share(variable)
    if isinstance(share, str):
        return ""
    most = "" if variable.touched_is_measured else "\u2264 "
    return f"{most}{variable.touched_rows} ({100 * share:.2g} %)"


def _details(plan: Plan, variable: VariablePlan) -> str:
    parts = [f"<p><b>{escape(variable.name)}</b>: {escape(variable.cls.value)}, {list(variable.shape)} "]
    parts.append(f"{escape(variable.dtype)}, {bytes_text(value_bytes(variable))}</p>")
    if variable.evidence:
        parts.append(f"<p>It is {escape(variable.cls.value)} because</p>{_list(variable.evidence)}")
    if variable.slots:
        parts.append(f"<p>With it go {escape(', '.join(variable.slots))}.</p>")
    owners = owner_texts(plan, variable)
    if owners:
        parts.append(f"<p>Who holds its rows</p>{_list(owners)}")
    if variable.route != NO_ROUTE:
        parts.append(_routes(variable))
    return "".join(parts)


def owner_texts(plan: Plan, variable: VariablePlan) -> list[str]:
    """Who holds how many rows, one line an owner; of many owners the first and the range."""
    if not variable.owner_rows:
        return []
    of_row = value_bytes(variable) / max(sum(variable.owner_rows), 1)
    hosts = plan.layout.host_by_rank
    lines = []
    for owner, rows in enumerate(variable.owner_rows[:SHOWN_OWNERS]):
        host = plan.servers[owner] if variable.servers else hosts[owner]
        who = f"server {owner}" if variable.servers else f"worker {owner}"
        lines.append(f"{who} on host {host}: {counted(rows, 'row')}, {bytes_text(round(rows * of_row))}")
    if len(variable.owner_rows) > SHOWN_OWNERS:
        least, most = min(variable.owner_rows), max(variable.owner_rows)
        lines.append(f"and {len(variable.owner_rows) - SHOWN_OWNERS} more; of all, from {least} to {most} rows each")
    return lines


def _routes(variable: VariablePlan) -> str:
    """All routes side by side, and beneath each what it costs term by term."""
    rows = []
    for cost in (variable.cost, *variable.rejected):
        taken = cost is variable.cost
        note = variable.reason if taken else cost.note
        mark = f'<i style="background:{COLOUR_BY_ROUTE[cost.route]}"></i>'
        rows.append(
            f"<tr{' class=taken' if taken else ''}><td>{mark}{escape(cost.route)}</td>"
            f"<td class=n>{bytes_text(cost.sent_bytes)}</td><td class=n>{cost.rounds}</td>"
            f"<td class=n>{_ms(cost.seconds) or '?'}</td><td>{_terms(cost)}</td><td>{escape(note)}</td></tr>"
        )
    return (
        "<table class=routes><thead><tr><th>route</th><th>sent/step</th><th>rounds</th><th>ms it adds</th>"
        f"<th>by itself it would take</th><th></th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _terms(cost: RouteCost) -> str:
    return "<br>".join(escape(_term(term)) for term in cost.terms)


def _term(term: CostTerm) -> str:
    carried = f" ({bytes_text(term.link_bytes)})" if term.link_bytes else ""
    return f"{ms_text(term.seconds)} {term.phase}: {_WHAT[term.what]}{carried}"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
