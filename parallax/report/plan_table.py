"""Formats a plan as text: a table of all variables, and the explanation of one variable."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import fields

from parallax.graph.spec import OPEN_SHAPE, VariableClass
from parallax.plans.coordinates import locate
from parallax.plans.model_stages import StagePlan, idle_share, runs_in_flight
from parallax.plans.plan import NO_ROUTE, PS, Plan, RouteCost, VariablePlan
from parallax.plans.prediction import COMPUTE, LINK, SESSION, Flip
from parallax.report.text import align, bytes_text, hosts_text, list_first, ms_text, pluralize

_SHOWN_PARTITIONS = 8
_SHOWN_NAMES = 3
_IDS_WORDS = "IDS: how many ids of the table one worker looks up in a batch, at most"
_COLUMNS = ("variable", "class", "shape", "touched", "route", "rows held by", "sent/step", "reason")
_STAGE_COLUMNS = ("stage", "from", "variables", "parameters", "holds", "of the operations", "activations", "sends")
_TIMED_COLUMNS = (*_COLUMNS[:-1], "ms/step", "next best", "another route", "reason")


def plan_table(plan: Plan, shows_all: bool = False) -> str:
    """The table of `parallax plan`; its bytes are what one worker sends per step (`RouteCost.sent_bytes`).

    Args:
        plan: the plan to print.
        shows_all: whether variables without a route have a row each; else similar ones share a line, and per-worker
            state, such as the counts of a metric, is omitted.
    """
    trained = [v for v in plan.variables if v.route != NO_ROUTE]
    rest = [v for v in plan.variables if v.route == NO_ROUTE and (shows_all or v.cls is not VariableClass.LOCAL)]
    folded = [] if shows_all else _fold(rest)
    alone = [v for v in rest if not any(v in alike for alike in folded)]
    step_s = plan.prediction.step_s
    columns = _COLUMNS if step_s is None else _TIMED_COLUMNS
    head = f"Plan for {', '.join(members_texts(plan))}, graph {plan.fingerprint[:12]}{_islands_text(plan)}"
    lines = [head, *_coordinate_texts(plan)]
    stage_of = {name: f"stage {number}" for number, stage in enumerate(plan.stages) for name in stage.variables}
    lines += align(columns, [_row(v, step_s, stage_of.get(v.name, "")) for v in (*trained, *alone)])
    lines += [_folded_text(alike) for alike in folded]
    on_servers = [v for v in plan.variables if v.route == PS]
    lines += [
        *_touched_setting(trained),
        *_by_route(trained),
        _total(_of_busiest_stage(plan, trained)),
        *(_server_total(plan, on_servers, server) for server in range(len(plan.servers))),
    ]
    lines += _stage_texts(plan)
    lines += [*step_texts(plan), *_meeting_texts(plan)]
    lines.extend(f"note: {note}" for note in plan.notes)
    return "\n".join(lines) + "\n"


def _coordinate_texts(plan: Plan) -> list[str]:
    """The parallelism of each group of variables; empty where all are trained by synchronous data parallelism."""
    groups = locate(plan)
    if all(group.is_plain for group in groups):
        return []
    texts = [
        f"{pluralize(len(group.variables), 'variable')} {group.split}, {group.updates}, by {group.exchange}"
        for group in groups
    ]
    models = "One model" if plan.islands is None else f"{plan.islands.count} models, one in each island"
    return [f"{models}: {'; '.join(texts)}."]


def _islands_text(plan: Plan) -> str:
    """The promise of a job in islands, in the plan's first line; empty where all workers train as one process."""
    islands = plan.islands
    if islands is None:
        return ""
    return (
        f": {islands.count} islands of {pluralize(plan.num_replicas, 'worker')}, each as one process on its own "
        f"batches, averaged every {pluralize(islands.every, 'update')}"
    )


def _of_busiest_stage(plan: Plan, trained: list[VariablePlan]) -> list[VariablePlan]:
    """The variables whose gradients a worker sends: all, or those of the stage that sends most."""
    by_stage = [[v for v in trained if v.name in stage.variables] for stage in plan.stages]
    return max(by_stage, key=lambda some: sum(v.cost.sent_bytes or 0 for v in some), default=trained)


def _stage_texts(plan: Plan) -> list[str]:
    """A line for each stage of the model, with its stored and sent bytes and its waiting time; empty without stages."""
    if not plan.stages:
        return []
    rows = []
    for number, stage in enumerate(plan.stages):
        begins = list_first(stage.begins, 1) or "the batch"
        holds, sends = bytes_text(stage.held_bytes), bytes_text(stage.sent_bytes)
        numbers = f"{len(stage.variables)}", f"{stage.parameters}", holds, f"{100 * stage.cost_share:.0f} %"
        runs = runs_in_flight(number, len(plan.stages), plan.accumulate_steps)
        row = (f"{number}", begins, *numbers, activation_text(stage, runs), sends)
        run_ms = ms_text(stage.run_s).removesuffix(" ms")
        rows.append(row if stage.run_s is None else (*row, run_ms, f"{_idle(plan, number):.0f} %"))
    columns = _STAGE_COLUMNS if len(rows[0]) == len(_STAGE_COLUMNS) else (*_STAGE_COLUMNS, "ms", "idle")
    idle = 100 * idle_share(len(plan.stages), plan.accumulate_steps)
    formed = "have the same stage, so that gradients stay on a host" if plan.is_by_stage else "form a replica"
    members = f"{pluralize(plan.num_replicas, 'replica')} of {len(plan.stages)} stages"
    batches = f"{plan.accumulate_steps} micro-batch{'es' if plan.accumulate_steps > 1 else ''}"
    return [
        *align(columns, rows),
        f"{members}; consecutive workers {formed}. With {batches} per update, each stage is idle {idle:.0f} % of "
        "the time. Bytes are per example if the batch is open, else per micro-batch.",
    ]


def activation_text(stage: StagePlan, runs: int) -> str:
    """The activations of a stage with `runs` runs in flight: of those that wait for their gradients, and of one."""
    waiting = f"{runs - 1} x {bytes_text(stage.kept_bytes)} + " if runs > 1 else ""
    return waiting + bytes_text(stage.most_bytes)


def _idle(plan: Plan, number: int) -> float:
    """The idle percentage of a stage in the predicted step."""
    step_s, turns = plan.prediction.step_s, plan.stages[number].turns
    if not step_s:
        return 100 * idle_share(len(plan.stages), plan.accumulate_steps)
    return 100 * (1 - sum(turn.end_s - turn.start_s for turn in turns) / step_s)


class PrintedPlan(Plan):
    """A plan that prints as its table."""

    __slots__ = ()

    @classmethod
    def of(cls, plan: Plan) -> PrintedPlan:
        """The plan with its table as text."""
        return cls(**{field.name: getattr(plan, field.name) for field in fields(plan)})

    def __str__(self) -> str:
        return plan_table(self).rstrip("\n")


def _fold(rest: list[VariablePlan]) -> list[list[VariablePlan]]:
    """Groups of two or more similar variables without a route."""
    by_kind: dict[tuple[str, str], list[VariablePlan]] = {}
    for variable in rest:
        by_kind.setdefault((variable.cls.value, variable.reason), []).append(variable)
    return [alike for alike in by_kind.values() if len(alike) > 1]


def _folded_text(variables: list[VariablePlan]) -> str:
    names = ", ".join(variable.name for variable in variables[:_SHOWN_NAMES])
    more = f" and {len(variables) - _SHOWN_NAMES} more, which --all shows" if len(variables) > _SHOWN_NAMES else ""
    return f"{len(variables)} {variables[0].cls.value} variables ({variables[0].reason}): {names}{more}."


def _by_route(trained: list[VariablePlan]) -> list[str]:
    """The number of variables on each route, and their bytes; empty if the rows or the total say the same."""
    by_route: dict[str, list[VariablePlan]] = {}
    for variable in trained:
        by_route.setdefault(variable.route, []).append(variable)
    if not 1 < len(by_route) < len(trained):
        return []
    phrases = []
    for route, variables in sorted(by_route.items()):
        sizes = [v.cost.sent_bytes for v in variables if v.cost.sent_bytes is not None]
        size = f", {bytes_text(sum(sizes))}{_add_unknown(variables)}" if sizes else " of unknown size"
        phrases.append(f"{route} {pluralize(len(variables), 'variable')}{size}")
    return [f"By route: {'; '.join(phrases)}."]


def _touched_setting(trained: list[VariablePlan]) -> list[str]:
    """The setting for a plan's unknown touched rows of tables; the user must fill in the number of ids per batch."""
    unknown = [v.name for v in trained if v.cost.sent_bytes is None]
    if not unknown:
        return []
    entries = ", ".join(f'"{name}": IDS' for name in unknown)
    return [f"To set what is unknown: parallax.Config(touched_rows={{{entries}}})  # {_IDS_WORDS}"]


def explain_variable(plan: Plan, name: str) -> str:
    """The complete explanation of one variable of the plan.

    Raises:
        PlanError: when the plan has no variable of that name.
    """
    variable = plan.variable(name)
    lines = [f"{name}: {variable.cls.value}, {list(variable.shape)} {variable.dtype}"]
    lines += [f"  because {line}" for line in variable.evidence]
    if variable.slots:
        lines.append(f"  slots {', '.join(variable.slots)}")
    sent = f"{_format_sent(variable.cost)} per worker and step, {_rounds(variable.cost)}"
    lines.append(f"route {variable.route}: {sent}; {variable.reason}")
    if variable.touched_rows is not None:
        most = "about" if variable.touched_is_measured else "at most"
        lines.append(f"  {most} {variable.touched_rows} of {variable.shape[0]} rows touched by a worker in a step")
    lines += [*_terms(variable.cost), *(f"  {line}" for line in flip_texts(variable.flips))]
    lines += _owners(plan, variable)
    for r in variable.rejected:
        lines.append(f"not {r.route}: {_format_sent(r)}, {_rounds(r)}{f'; {r.note}' if r.note else ''}")
        lines += _terms(r)
    return "\n".join(lines) + "\n"


def flip_texts(flips: tuple[Flip, ...]) -> tuple[str, ...]:
    """The values at which the choice would change, each as text: `allreduce above 1.97 Gbit/s`."""
    texts = []
    for flip in flips:
        value = f"{8 * flip.value / 1e9:.3g} Gbit/s" if flip.quantity == LINK else f"{flip.value:.0f} touched rows"
        if flip.quantity == LINK and flip.value < 1.25e8:
            value = f"{8 * flip.value / 1e6:.3g} Mbit/s"
        texts.append(f"{flip.route} {'above' if flip.above else 'below'} {value}")
    return tuple(texts)


def step_texts(plan: Plan) -> list[str]:
    """The predictions about a step, and its distance from the optimum; empty without a cluster profile."""
    known = plan.prediction
    if known.step_s is None:
        return [known.unknown] if known.unknown and plan.profiles else []
    what = "A step takes" if known.has_compute else "The exchanges of a step (compute was not measured) take"
    lines = [f"{what} {ms_text(known.step_s)}, as predicted: {_phases(plan)}.", *_describe_hidden(plan)]
    if known.lower_bound_s is not None and known.gap is not None:
        proof = "proven" if known.gap == 0 else f"at most {100 * known.gap:.2g} % from the best"
        lines.append(f"No choice takes less than {ms_text(known.lower_bound_s)} ({proof}; of {known.bound_of}).")
    used = (f"{p.kind} profile {p.name or p.fingerprint[:12]}" for p in plan.profiles)
    return [*lines, f"Predicted from {' and '.join(used)}."]


def _meeting_texts(plan: Plan) -> list[str]:
    """The bytes and seconds of a meeting of islands; empty where there are none, or the bytes are unknown."""
    islands, step_s = plan.islands, plan.prediction.step_s
    if islands is None or islands.meeting_bytes is None:
        return []
    text = f"At a meeting an island sends others at most {bytes_text(islands.meeting_bytes)}"
    if islands.meeting_s is None or step_s is None:
        return [f"{text}."]
    share_s = islands.meeting_s / islands.every
    return [
        f"{text}, in {ms_text(islands.meeting_s)} as predicted: {ms_text(share_s)} an update, which then takes "
        f"{ms_text(step_s + share_s)}."
    ]


def _phases(plan: Plan) -> str:
    return (
        ", ".join(f"{phase.name} {ms_text(phase.end_s - phase.start_s)}" for phase in plan.prediction.phases) or "none"
    )


def _describe_hidden(plan: Plan) -> list[str]:
    """The part of the predicted exchanges that overlaps with compute, and the possible part, if both are known."""
    computing = [(phase.start_s, phase.end_s) for phase in plan.prediction.phases if phase.name == COMPUTE]
    exchanges = [phase for phase in plan.prediction.phases if phase.name not in (COMPUTE, SESSION)]
    computed_s = sum(end_s - start_s for start_s, end_s in computing)
    exchanged_s = sum(phase.end_s - phase.start_s for phase in exchanges)
    if not computed_s or not exchanged_s:
        return []
    hidden_s = sum(
        max(0.0, min(phase.end_s, end_s) - max(phase.start_s, start_s))
        for phase in exchanges
        for start_s, end_s in computing
    )
    possible = min(1.0, computed_s / exchanged_s)
    return [
        f"Communication hidden: {100 * hidden_s / exchanged_s:.0f} % of at most {100 * possible:.0f} %; no step is "
        f"shorter than the longer of exchanges and compute, {ms_text(max(computed_s, exchanged_s))}."
    ]


def _terms(cost: RouteCost) -> list[str]:
    """The seconds of a route, term by term."""
    if cost.seconds is None:
        return []
    lines = [f"  adds {ms_text(cost.seconds)} to the step; by itself, it would take"]
    for term in cost.terms:
        carried = f" ({bytes_text(term.link_bytes)})" if term.link_bytes else ""
        what = {"rounds": "rounds", "link": f"on the busiest link{carried}", "beside": f"copies and checks{carried}"}
        lines.append(f"    {ms_text(term.seconds)} {term.phase}: {what[term.what]}")
    return lines if cost.terms else lines[:-1] + [f"  adds {ms_text(cost.seconds)} to the step"]


def _row(variable: VariablePlan, step_s: float | None, stage: str) -> tuple[str, ...]:
    shape = shape_text(variable)
    touched = "" if variable.touched_rows is None else f"<= {variable.touched_rows}"
    touched = touched.removeprefix("<= ") if variable.touched_is_measured else touched
    sent = "" if variable.route == NO_ROUTE else _format_sent(variable.cost)
    holders = stage or describe_holders(variable)
    row = (variable.name, variable.cls.value, shape, touched, variable.route, holders, sent)
    if step_s is None:
        return (*row, variable.reason)
    seconds = "" if variable.route == NO_ROUTE else ms_text(variable.cost.seconds).removesuffix(" ms")
    second = variable.runner_up
    percent = 100 * second.more_s / step_s if second is not None and step_s > 0 else 0.0
    following = "" if second is None else f"+{percent:.2g} % {second.route}"
    return (*row, seconds, following, "; ".join(flip_texts(variable.flips)), variable.reason)


def describe_holders(variable: VariablePlan) -> str:
    """The holders of a variable's rows, as text."""
    if variable.servers:
        partitions = [server for part in variable.servers for server in part]
        return f"{pluralize(len(partitions), 'partition')} on {pluralize(len(set(partitions)), 'server')}"
    owners = sum(rows > 0 for rows in variable.owner_rows)
    return pluralize(owners, "owner") if variable.owner_rows else "every worker"


def members_texts(plan: Plan) -> list[str]:
    """The workers and servers of a plan, with their hosts if there are several."""
    members = [pluralize(plan.num_workers, "worker")]
    if plan.servers:
        members.append(pluralize(len(plan.servers), "server"))
    if len(plan.hosts) > 1:
        members[0] += f" ({hosts_text(dict(enumerate(plan.hosts)))})"
        if plan.servers:
            members[1] += f" ({hosts_text(Counter(plan.servers))})"
    return members


def _owners(plan: Plan, variable: VariablePlan) -> list[str]:
    """The rows of each owner, one line each: rows and bytes of the variable itself, without its slots."""
    row_bytes = value_bytes(variable) // max(variable.shape[0], 1) if variable.shape else value_bytes(variable)
    partitions = [server for part in variable.servers for server in part]
    lines = []
    for owner, rows in enumerate(variable.owner_rows):
        line = f"{pluralize(rows, 'row')}, {bytes_text(rows * row_bytes)}"
        if not partitions:
            lines.append(f"  worker {owner} owns {line}")
            continue
        if not rows:
            continue
        numbers = [str(number) for number, server in enumerate(partitions) if server == owner]
        more = f", ... ({len(numbers)} of {len(partitions)})" if len(numbers) > _SHOWN_PARTITIONS else ""
        which = f": partition{'s' if len(numbers) != 1 else ''} {', '.join(numbers[:_SHOWN_PARTITIONS])}{more}"
        host = f" on host {plan.servers[owner]}" if len(plan.hosts) > 1 else ""
        lines.append(f"  server {owner}{host} holds {line}{which}")
    return lines


def shape_text(variable: VariablePlan) -> str:
    """The shape of a variable, as `11x4`."""
    return "unknown" if variable.shape == OPEN_SHAPE else "x".join(str(d) for d in variable.shape) or "scalar"


def value_bytes(variable: VariablePlan) -> int:
    """Bytes of the full value; the names of element types end in their number of bits, except for bool."""
    bits = re.search(r"\d+$", variable.dtype)
    return math.prod(variable.shape) * (int(bits[0]) // 8 if bits else 1)


def _format_sent(cost: RouteCost) -> str:
    return bytes_text(cost.sent_bytes)


def _rounds(cost: RouteCost) -> str:
    return pluralize(cost.rounds, "round")


def _total(trained: list[VariablePlan]) -> str:
    """The bytes that one worker moves in a step; the bytes of `ps` are those of both directions."""
    among = [v for v in trained if v.route != PS]
    served = [v for v in trained if v.route == PS]
    sent, moved = (bytes_text(sum(v.cost.sent_bytes or 0 for v in some)) for some in (among, served))
    text = f"A worker sends at most {sent} per step{_add_unknown(among)}, and receives as much." if among else ""
    if served:
        more = _add_unknown(served)
        text += f"{' ' if text else ''}A worker and the servers send each other at most {moved} per step{more}."
    return text


def _server_total(plan: Plan, variables: list[VariablePlan], server: int) -> str:
    """The bytes that a server stores, and moves in a step for all workers."""
    total = sent = 0
    for variable in variables:
        rows = sum(variable.owner_rows) or 1
        total += value_bytes(variable) * variable.owner_rows[server] // rows
        sent += plan.num_workers * (variable.cost.sent_bytes or 0) * variable.owner_rows[server] // rows
    host = f" on host {plan.servers[server]}" if len(plan.hosts) > 1 else ""
    more = _add_unknown([v for v in variables if v.owner_rows[server]])
    return (
        f"Server {server}{host} holds {bytes_text(total)} of variables, and it and the workers send each other at most "
        f"{bytes_text(sent)} per step{more}."
    )


def _add_unknown(variables: list[VariablePlan]) -> str:
    unknown = sum(v.cost.sent_bytes is None for v in variables)
    return f", and {pluralize(unknown, 'variable')} of unknown size" if unknown else ""
