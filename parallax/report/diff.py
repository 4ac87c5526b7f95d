"""Lists the differences between two plans: the plan as a whole first, then variable by variable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from parallax.plans.plan import Plan, RouteCost, VariablePlan
from parallax.plans.prediction import Prediction
from parallax.report.plan_table import describe_holders, flip_texts, members_texts
from parallax.report.text import align, bytes_text, hosts_text, ms_text, pluralize

_SHOWN = 60
"""The maximum length of a displayed value that has no text form of its own."""


@dataclass(frozen=True, slots=True)
class PlanDifference:
    """One difference between two plans.

    Attributes:
        variable: its name; empty for the plan as a whole.
        what: the property.
        first: its value in the first plan, as text; empty if it has none.
        second: its value in the second.
    """

    variable: str
    what: str
    first: str
    second: str


def differences(first: Plan, second: Plan) -> tuple[PlanDifference, ...]:
    """All differences between two plans; empty when they are equal."""
    plan_differences = list(_of_plans(first, second))
    names = sorted({v.name for plan in (first, second) for v in plan.variables})
    by_name = [{v.name: v for v in plan.variables} for plan in (first, second)]
    for name in names:
        a, b = (of.get(name) for of in by_name)
        if a is None or b is None:
            plan_differences.append(
                PlanDifference(name, "variable", *("there is none" if v is None else v.route for v in (a, b)))
            )
        else:
            plan_differences += _of_variables(a, b)
    return tuple(plan_differences)


def difference_text(plan_differences: Sequence[PlanDifference], names: tuple[str, str] = ("A", "B")) -> str:
    """The output of `parallax diff`.

    Args:
        plan_differences: the differences.
        names: of the two plans, for the heading.
    """
    if not plan_differences:
        return "The plans are equal.\n"
    rows = []
    named = ""
    for one in plan_differences:
        variable = one.variable or "(plan)"
        rows.append(("" if variable == named else variable, one.what, one.first or "none", one.second or "none"))
        named = variable
    lines = align(("variable", "what", *names), rows)
    differing = len({d.variable for d in plan_differences if d.variable})
    return "\n".join([*lines, f"{pluralize(differing, 'variable')} of the plans differ."]) + "\n"


def places_text(first: Plan, second: Plan) -> str:
    """A line for each variable whose gradients take another route in the second plan, or whose rows are elsewhere."""
    pairs = ((variable, second.variable(variable.name)) for variable in first.variables)
    return "".join(f"  {a.name}: {_place(a)} -> {_place(b)}\n" for a, b in pairs if _key(a) != _key(b))


def _key(variable: VariablePlan) -> tuple[object, ...]:
    return variable.route, variable.owner_pattern, variable.servers


def _place(variable: VariablePlan) -> str:
    return f"{variable.route}, held by {describe_holders(variable)}"


def _of_plans(first: Plan, second: Plan) -> Iterator[PlanDifference]:
    sent = [sum(v.cost.sent_bytes or 0 for v in plan.variables) for plan in (first, second)]
    if sent[0] != sent[1]:
        yield PlanDifference("", "sent by a worker in a step", *_format_change(sent, bytes_text))
    shown: dict[str, Callable[[Plan], str]] = {
        "hosts": lambda p: ", ".join(members_texts(p)),
        "servers": lambda p: hosts_text(Counter(p.servers)),
        "profiles": lambda p: ", ".join(f"{u.kind} {u.name} {u.fingerprint[:12]}" for u in p.profiles),
        "notes": lambda p: "; ".join(p.notes),
    }
    for field in fields(Plan):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if a == b or field.name == "variables":
            continue
        if field.name == "prediction":
            yield from _of_predictions(first.prediction, second.prediction)
            continue
        words = shown.get(field.name)
        texts = (words(first), words(second)) if words else (str(a), str(b))
        what = "graph" if field.name == "fingerprint" else field.name.replace("_", " ")
        yield PlanDifference("", what, *_cut(texts if texts[0] != texts[1] else (str(a), str(b))))


_PREDICTED: dict[str, Callable[[Any], str]] = {
    "phases": lambda p: f"{p.name} {ms_text(p.end_s - p.start_s)}",
    "loads": lambda p: f"host {p.host} {bytes_text(p.out_bytes)} out {bytes_text(p.in_bytes)} in",
    "memory": lambda p: f"{p.kind} {p.number} {bytes_text(p.values_bytes + p.exchange_bytes + p.model_bytes)}",
}


def _of_predictions(first: Prediction, second: Prediction) -> Iterator[PlanDifference]:
    for field in fields(Prediction):
        a, b = getattr(first, field.name), getattr(second, field.name)
        if a == b:
            continue
        if field.name in ("step_s", "lower_bound_s"):
            what = "predicted step" if field.name == "step_s" else "no step below"
            yield PlanDifference("", what, *_format_change((a, b), ms_text))
        elif field.name in _PREDICTED:
            texts = [", ".join(_PREDICTED[field.name](one) for one in of) for of in (a, b)]
            yield PlanDifference("", field.name, *_cut(texts if texts[0] != texts[1] else (str(a), str(b))))
        else:
            yield PlanDifference("", field.name.replace("_", " "), *_cut((_join_values(a), _join_values(b))))


def _of_variables(a: VariablePlan, b: VariablePlan) -> Iterator[PlanDifference]:
    holders = describe_holders(a), describe_holders(b)
    if holders[0] != holders[1]:
        yield PlanDifference(a.name, "rows held by", *holders)
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "cls": ("class", lambda cls: str(cls.value)),
        "owner_rows": ("rows of owners", _join_values),
        "owner_pattern": ("pattern of owners", _join_values),
        "servers": ("servers", _join_values),
        "runner_up": ("next best", lambda r: "" if r is None else f"{r.route} +{ms_text(r.more_s)}"),
        "flips": ("another route", lambda flips: "; ".join(flip_texts(flips))),
        "rejected": ("other routes", lambda of: ", ".join(_cost_text(c) for c in of)),
    }
    for field in fields(VariablePlan):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if x == y or (field.name in ("owner_rows", "servers") and holders[0] != holders[1]):
            continue
        if field.name == "cost":
            yield from _of_costs(a, b)
            continue
        what, words = shown.get(field.name, (field.name.replace("_", " "), _join_values))
        texts = words(x), words(y)
        yield PlanDifference(a.name, what, *_cut(texts if texts[0] != texts[1] else (str(x), str(y))))


def _of_costs(a: VariablePlan, b: VariablePlan) -> Iterator[PlanDifference]:
    x, y = a.cost, b.cost
    if x.sent_bytes != y.sent_bytes:
        yield PlanDifference(a.name, "sent/step", *_format_change((x.sent_bytes, y.sent_bytes), bytes_text))
    if x.seconds != y.seconds:
        yield PlanDifference(a.name, "ms/step", *_format_change((x.seconds, y.seconds), ms_text))
    if x.rounds != y.rounds:
        yield PlanDifference(a.name, "rounds", str(x.rounds), str(y.rounds))
    if x.terms != y.terms and x.seconds == y.seconds:
        yield PlanDifference(a.name, "terms", *_cut((_join_values(x.terms), _join_values(y.terms))))
    if x.note != y.note:
        yield PlanDifference(a.name, "note", *_cut((x.note, y.note)))


def _format_change(values: Sequence[Any], words: Callable[[Any], str]) -> tuple[str, str]:
    """Two figures, the second with its difference in percent; in full if three digits are equal."""
    first, second = values
    texts = words(first), words(second)
    if texts[0] == texts[1]:
        texts = repr(first), repr(second)
    if first and second is not None:
        return texts[0], f"{texts[1]} ({100 * (second / first - 1):+.3g} %)"
    return texts


def _join_values(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(v) for v in value)
    return "" if value is None else str(value)


def _cut(texts: Sequence[str]) -> tuple[str, str]:
    """Both texts, shortened; from where they begin to differ when that is far into the text."""
    first, second = texts
    least = min(len(first), len(second))
    common = next((n for n in range(least) if first[n] != second[n]), least)
    start = max(0, common - 10) if common > _SHOWN - 15 else 0

    def part(text: str) -> str:
        cut = ("\u2026" if start else "") + text[start:]
        return cut if len(cut) <= _SHOWN else cut[: _SHOWN - 1] + "\u2026"

    return part(first), part(second)


def _cost_text(cost: RouteCost) -> str:
    more = f" ({cost.note})" if cost.seconds is None and cost.note else ""
    more = more if cost.seconds is None else f" {ms_text(cost.seconds)}"
    return f"{cost.route} {bytes_text(cost.sent_bytes)}{more}"
