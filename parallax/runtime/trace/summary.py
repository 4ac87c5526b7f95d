"""Summarises a trace as text: how each rank spent its steps, and the rank that the others waited for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from parallax.analysis.timing.intervals import length, union
from parallax.report.text import in_columns
from parallax.runtime.trace.clocks import Offset
from parallax.runtime.trace.ops import COMPUTE, KINDS
from parallax.runtime.trace.rows import RankTrace
from parallax.runtime.trace.waits import causes


@dataclass(frozen=True, slots=True)
class Slowest:
    """The rank that the others waited for most, excluding the time in which it waited itself.

    Attributes:
        rank: its number.
        waited_us: how long each of the others, of its stage or island, waited for it in a step, on average.
    """

    rank: int
    waited_us: float


def slowest(traces: Sequence[RankTrace]) -> Slowest | None:
    """The slowest rank, the first of equals; None if no rank waited."""
    steps = max((len(trace.steps) for trace in traces), default=0)
    sizes = Counter(trace.group for trace in traces)
    others = {trace.rank: sizes[trace.group] - 1 for trace in traces}
    busy = {t.rank: union((s.start_us, s.end_us) for s in t.spans if s.row == COMPUTE) for t in traces}
    in_the_end = causes({trace.rank: trace.waits for trace in traces}, busy)
    slowest_rank: Slowest | None = None
    for candidate in sorted(trace.rank for trace in traces):
        total_us = sum(length((c.start_us, c.end_us) for c in by if c.whom == candidate) for by in in_the_end)
        if total_us > 0 and total_us / (steps * others[candidate]) > (slowest_rank.waited_us if slowest_rank else 0.0):
            slowest_rank = Slowest(candidate, total_us / (steps * others[candidate]))
    return slowest_rank


def summary(traces: Sequence[RankTrace], requested: tuple[int, int], stages: Iterable[str] = ()) -> str:
    """The text of `summary.txt`.

    Args:
        traces: of all ranks, by rank.
        requested: the first and last requested step.
        stages: lines about the stages of a model.
    """
    numbers = sorted({step.number for trace in traces for step in trace.steps})
    if not numbers:
        return f"No step was traced: there were fewer runs that train than {requested[0] + 1}. See --trace-steps.\n"
    which = f"steps {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"step {numbers[0]}"
    lines = [f"Trace of {which}: ms in a step, the mean of {len(numbers)}", *_table(traces)]
    lines.append("Kinds of work run in parallel, so that they do not add up to the step. Clocks are rank 0's;")
    lines.append("`outside` passes from a step's last op to the next one's first: the script's own Python, feeds and")
    lines.append("fetches, and what tracing takes. `clock` is what was added, and how wrong it may be.")
    lines += [_server_clock(number, offset) for number, offset in enumerate(traces[0].servers)]
    lines += [*stages, *_idle(traces), *_limits(traces), *_verdict(traces)]
    return "\n".join(lines) + "\n"


def _table(traces: Sequence[RankTrace]) -> list[str]:
    with_servers = any(step.server_us for trace in traces for step in trace.steps)
    header = ("rank", "host", "step", "outside", *KINDS, *(["on servers"] if with_servers else []), "clock")
    rows = [header]
    for trace in traces:
        count = len(trace.steps) or 1
        columns = [[step.us_by_kind[kind] for step in trace.steps] for kind in KINDS]
        columns += [[step.server_us for step in trace.steps]] if with_servers else []
        outside_us = outside(trace)
        means = [_ms(_step_us(trace)), "-" if outside_us is None else _ms(outside_us)]
        means += [_ms(sum(column) / count) for column in columns]
        rows.append((str(trace.rank), trace.host, *means, _clock(trace.offset)))
    return in_columns(rows)


def outside(trace: RankTrace) -> float | None:
    """The mean time between consecutive steps, in microseconds; None if no two steps follow each other, or overlap."""
    if trace.passes is not None:
        return None
    pairs = itertools.pairwise(step for step in trace.steps if step.end_us > step.start_us)
    gaps_us = [after.start_us - before.end_us for before, after in pairs if after.number == before.number + 1]
    return sum(gaps_us) / len(gaps_us) if gaps_us else None


def _step_us(trace: RankTrace) -> float:
    return sum(step.end_us - step.start_us for step in trace.steps) / (len(trace.steps) or 1)


def _idle(traces: Sequence[RankTrace]) -> list[str]:
    """Reports a rank whose script takes more time than its steps: the rank for which that is most."""
    most = max(traces, key=lambda trace: outside(trace) or 0.0)
    outside_us = outside(most)
    if outside_us is None or outside_us <= _step_us(most):
        return []
    return [
        f"More time passes outside the steps than in them: {_ms(outside_us)} ms on rank {most.rank}. Look at what the "
        "script does between two runs (batches made in Python, other fetches)."
    ]


def _limits(traces: Sequence[RankTrace]) -> list[str]:
    """Reports the overlap of exchanges and the lower bound of a step, for the rank with the largest lower bound."""
    known = [(trace.rank, trace.limits) for trace in traces if trace.limits is not None]
    if not known:
        return []
    rank, limits = max(known, key=lambda one: one[1].shortest_us)
    more_frac = more_us = ""
    if limits.overlapping_frac is not None and limits.overlapping_us is not None:
        more_frac = f" ({100 * limits.overlapping_frac:.0f} % where steps overlap)"
        more_us = f" ({_ms(limits.overlapping_us)} where steps overlap)"
    return [
        f"Communication hidden on rank {rank}: {100 * limits.hidden_frac:.0f} % of {100 * limits.possible_frac:.0f} % "
        f"possible{more_frac}; shortest schedule of its ops {_ms(limits.shortest_us)} ms{more_us}; measured "
        f"{_ms(limits.measured_us)} ms."
    ]


def _server_clock(number: int, offset: Offset | None) -> str:
    if offset is None:
        return f"Clock of server {number}: unknown, its rows are not corrected"
    return f"Clock of server {number}: {_clock(offset)}"


def _clock(offset: Offset) -> str:
    return f"{_ms(offset.offset_us, '+')} +- {_ms(offset.uncertainty_us)}"


def _verdict(traces: Sequence[RankTrace]) -> Iterator[str]:
    if len(traces) < 2:
        yield "There is only one worker, which waits for no other."
        return
    if len({trace.group for trace in traces}) == len(traces):  # stages without replicas wait for messages alone
        return
    most = slowest(traces)
    if most is None:
        yield "No rank waited for another in these steps."
        return
    trace = next(trace for trace in traces if trace.rank == most.rank)
    who, waited = f"rank {most.rank} on host {trace.host}", f"{_ms(most.waited_us)} ms in a step"
    uncertainty_us = max(trace.offset.uncertainty_us for trace in traces)
    if most.waited_us <= uncertainty_us:
        yield (
            f"No rank is clearly the slowest: {who} was waited for most, {waited}, which is within the uncertainty "
            "of the clocks."
        )
    else:
        yield f"The slowest is {who}: the others waited {waited} for it."


def _ms(us: float, sign: str = "") -> str:
    return f"{us / 1000:{sign}.2f}"
