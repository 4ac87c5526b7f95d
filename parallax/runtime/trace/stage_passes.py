"""The passes of micro-batches through the stages of a model: as measured, beside the predicted ones.

An op that autodiff made belongs to the backward pass of its micro-batch, an op that depends on one of these to the
update, and any other op to the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean

from parallax.analysis.timing.intervals import length, union
from parallax.graph.view import GraphView
from parallax.plans.model_stages import StageTurn, idle_share
from parallax.plans.plan import Plan
from parallax.report.text import bytes_text, in_columns
from parallax.runtime.trace.dependencies import NodeOwners
from parallax.runtime.trace.ops import PULL, Step
from parallax.transform.building.all_to_all import is_collective
from parallax.transform.building.editor import SCOPE
from parallax.transform.passes.cut_stages import SEND

FORWARD, BACKWARD, UPDATE = PASSES = "forward", "backward", "update"
GAP_US = 100.0
"""A pass with shorter pauses is one interval; sums exclude the pauses."""


@dataclass(frozen=True, slots=True)
class Pass:
    """An interval in which a stage computes a pass of one micro-batch.

    Attributes:
        step: number of the step.
        micro_batch: number of the micro-batch within the step.
        kind: forward, backward or update.
        start_us: in microseconds.
        end_us: in microseconds.
        busy_us: the time in which ops run.
    """

    step: int
    micro_batch: int
    kind: str
    start_us: float
    end_us: float
    busy_us: float

    @property
    def name(self) -> str:
        """The label."""
        return f"{self.kind} {self.micro_batch}"


@dataclass(frozen=True, slots=True)
class StagePasses:
    """The traced passes of one worker.

    Attributes:
        stage: of the worker.
        measured: its passes.
        alive_bytes: of the tensors of all runs in flight, at their most; without those that are fed.
        predicted: those of the plan, from the start of each step on; empty where times are unknown.
    """

    stage: int
    measured: tuple[Pass, ...]
    alive_bytes: int = 0
    predicted: tuple[Pass, ...] = ()


def find_passes(runs: Iterable[Step], view: GraphView, autodiff: Collection[str]) -> tuple[Pass, ...]:
    """The passes of a worker.

    Args:
        runs: the ops of each run, which has one micro-batch.
        view: the graph of all stages.
        autodiff: the nodes that autodiff made.
    """
    kind_of = _classify(view, autodiff)
    passes = []
    for run in runs:
        times: dict[str, list[tuple[float, float]]] = {}
        for op in run.ops:
            if op.type != SEND and not is_collective(op.type):
                times.setdefault(kind_of(op.name, op.kind), []).append((op.start_us, op.end_us))
        for kind, intervals in times.items():
            busy = union(intervals)
            passes += [
                Pass(run.number, run.micro_batch, kind, start, end, sum(b - a for a, b in busy if start <= a < end))
                for start, end in union(intervals, GAP_US)
            ]
    return tuple(sorted(passes, key=lambda one: (one.start_us, one.end_us, one.name)))


def count_alive_bytes(runs: Iterable[Step]) -> int:
    """The most bytes of tensors that runs have allocated and not yet freed, at any one time."""
    most = alive = 0
    for _, size in sorted(one for run in runs for one in run.allocations):
        alive += size
        most = max(most, alive)
    return most


def _classify(view: GraphView, autodiff: Collection[str]) -> Callable[[str, str], str]:
    """The function from the name of an op, and its kind of work, to its pass."""
    owners = NodeOwners(view)
    backward = frozenset(autodiff)
    after = view.descendants(node for node in backward if node in view.nodes)

    def classify(name: str, kind: str) -> str:
        owner = owners.of(name) or name
        if owner in backward:
            return BACKWARD
        return UPDATE if owner in after or (owner.startswith(f"{SCOPE}/") and kind != PULL) else FORWARD

    return classify


def merge_runs(runs: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with the ops of all their micro-batches."""
    return tuple(
        Step(number, tuple(sorted((op for run in those for op in run.ops), key=lambda op: (op.start_us, op.end_us))))
        for number, those in groupby(runs, key=lambda run: run.number)
    )


def add_predictions(passes: Sequence[StagePasses], plan: Plan) -> list[StagePasses]:
    """The passes of all workers with the predicted ones, which begin with the first measured pass of a step.

    Args:
        passes: by rank, on one clock.
        plan: of the steps.
    """
    begins: dict[int, float] = {}
    for one in (one for worker in passes for one in worker.measured if one.kind == FORWARD):
        begins[one.step] = min(one.start_us, begins.get(one.step, one.start_us))
    return [
        replace(
            worker,
            predicted=tuple(
                _make_pass(turn, step, begin_us)
                for step, begin_us in sorted(begins.items())
                for turn in plan.stages[worker.stage].turns
            ),
        )
        for worker in passes
    ]


def _make_pass(turn: StageTurn, step: int, begin_us: float) -> Pass:
    start_us, end_us = (begin_us + 1e6 * at_s for at_s in (turn.start_s, turn.end_s))
    kind = BACKWARD if turn.is_backward else FORWARD
    return Pass(step, turn.micro_batch, kind, start_us, end_us, end_us - start_us)


def stage_lines(passes: Sequence[StagePasses], plan: Plan) -> Iterator[str]:
    """A table of the stages: their milliseconds in a step, and how much of it they are idle; measured and predicted.

    Args:
        passes: of all workers.
        plan: of the steps.
    """
    count, batches = len(plan.stages), plan.accumulate_steps
    step_s = plan.prediction.step_s
    prediction = ("predicted", "step", "idle") if step_s else ()
    rows: list[tuple[str, ...]] = [("stage", *PASSES, "step", "idle", "alive", *prediction)]
    for number, stage in enumerate(plan.stages):
        times = [time for one in passes if one.stage == number for time in [_measure(one.measured)] if time is not None]
        if not times:
            continue
        by_kind = [fmean(time.us_by_kind[kind] for time in times) for kind in PASSES]
        step_us, busy_us = fmean(time.step_us for time in times), fmean(time.busy_us for time in times)
        row = [str(number), *(f"{us / 1e3:.2f}" for us in (*by_kind, step_us)), _percent(1 - busy_us / step_us)]
        row.append(bytes_text(max(one.alive_bytes for one in passes if one.stage == number)))
        if step_s:
            turns_s = sum(turn.end_s - turn.start_s for turn in stage.turns)
            row += [f"{1e3 * turns_s:.2f}", f"{1e3 * step_s:.2f}", _percent(1 - turns_s / step_s)]
        rows.append(tuple(row))
    yield f"Stages: ms in a step of {batches} micro-batches, the mean of their workers"
    yield from in_columns(rows)
    yield (
        f"With equal stages and free messages each would be idle {_percent(idle_share(count, batches))} of the time. "
        "`step` passes from the end of one update to that of the next; `idle` is the part of it without a pass; "
        "`alive` is the peak size of the tensors of all runs in flight, without fed ones."
    )


@dataclass(frozen=True, slots=True)
class _StageTime:
    """Mean microseconds of a worker in a step."""

    step_us: float
    busy_us: float
    us_by_kind: dict[str, float]


def _measure(passes: Sequence[Pass]) -> _StageTime | None:
    """The times of a worker's steps; of the first one only the end counts, where there are several."""
    ends = {one.step: one.end_us for one in sorted(passes, key=lambda one: one.end_us)}
    steps = sorted(ends)
    if not steps:
        return None
    begin_us, end_us = min(one.start_us for one in passes), ends[steps[-1]]
    if len(steps) > 1:
        begin_us, steps = ends[steps[0]], steps[1:]
    inside = [one for one in passes if one.step in steps]
    by_kind = {kind: sum(one.busy_us for one in inside if one.kind == kind) / len(steps) for kind in PASSES}
    busy_us = length((one.start_us, one.end_us) for one in inside) / len(steps)
    return _StageTime((end_us - begin_us) / len(steps), busy_us, by_kind)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
