"""The plan as a person reads it: a table of all variables, and one variable explained."""

from __future__ import annotations

from parallax.plan import NO_ROUTE, Plan, RouteCost, VariablePlan

_COLUMNS = ("variable", "class", "shape", "touched", "route", "rows held by", "sent/step", "reason")


def plan_table(plan: Plan) -> str:
    """The table that `parallax plan` prints; bytes are what one worker sends per step, and it receives as many."""
    trained = [v for v in plan.variables if v.route != NO_ROUTE]
    rest = [v for v in plan.variables if v.route == NO_ROUTE]
    rows = [_COLUMNS, *(_row(v, plan.num_workers) for v in (*trained, *rest))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines = [f"Plan for {plan.num_workers} worker{'s' if plan.num_workers != 1 else ''}, graph {plan.fingerprint[:12]}"]
    for number, row in enumerate(rows):
        lines.append("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
        if number == 0:
            lines.append("  ".join("-" * width for width in widths))
    lines.append(_total(trained))
    lines.extend(f"note: {note}" for note in plan.notes)
    return "\n".join(lines) + "\n"


def explanation(plan: Plan, name: str) -> str:
    """Everything the plan knows of one variable.

    Raises:
        PlanError: when the plan has no variable of that name.
    """
    variable = plan.variable(name)
    lines = [f"{name}: {variable.cls.value}, {list(variable.shape)} {variable.dtype}"]
    lines += [f"  because {line}" for line in variable.evidence]
    if variable.slots:
        lines.append(f"  with it go {', '.join(variable.slots)}")
    sent = f"{_sent(variable.cost)} per worker and step, {_rounds(variable.cost)}"
    lines.append(f"route {variable.route}: {sent}; {variable.reason}")
    if variable.touched_rows is not None:
        lines.append(f"  at most {variable.touched_rows} of {variable.shape[0]} rows touched by a worker in a step")
    if variable.owner_rows:
        owned = ", ".join(f"worker {rank}: {rows}" for rank, rows in enumerate(variable.owner_rows))
        lines.append(f"  rows owned by {owned}")
    lines += [f"not {r.route}: {_sent(r)}, {_rounds(r)}{f'; {r.note}' if r.note else ''}" for r in variable.rejected]
    return "\n".join(lines) + "\n"


def bytes_text(count: int | None) -> str:
    """A byte count for people: decimal units, three digits."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "B" else f"{count} B"
        size /= 1000
    return f"{size:.4g} GB"


def _row(variable: VariablePlan, workers: int) -> tuple[str, ...]:
    shape = "x".join(str(d) for d in variable.shape) or "scalar"
    touched = "" if variable.touched_rows is None else f"<= {variable.touched_rows}"
    held = f"{workers} owner{'s' if workers != 1 else ''}" if variable.owner_rows else "every worker"
    sent = "" if variable.route == NO_ROUTE else _sent(variable.cost)
    return (variable.name, variable.cls.value, shape, touched, variable.route, held, sent, variable.reason)


def _sent(cost: RouteCost) -> str:
    return bytes_text(cost.sent_bytes)


def _rounds(cost: RouteCost) -> str:
    return f"{cost.rounds} round{'s' if cost.rounds != 1 else ''}"


def _total(trained: list[VariablePlan]) -> str:
    known = sum(v.cost.sent_bytes or 0 for v in trained)
    unknown = sum(v.cost.sent_bytes is None for v in trained)
    more = f", and {unknown} variable{'s' if unknown != 1 else ''} of unknown size" if unknown else ""
    return f"A worker sends at most {bytes_text(known)} per step{more}, and receives as much."
