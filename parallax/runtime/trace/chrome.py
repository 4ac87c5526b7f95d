"""Writes traces in Chrome's JSON format, for Perfetto and chrome://tracing: a process per rank, a row per thread.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from parallax.runtime.trace.ops import KINDS, Op, Step
from parallax.runtime.trace.rows import RankTrace, lanes
from parallax.runtime.trace.stage_passes import Pass, StagePasses

Event = dict[str, Any]


def trace_text(traces: Sequence[RankTrace], steps: Sequence[Step] = ()) -> str:
    """The content of the trace file of some ranks.

    Args:
        traces: their rows; times are microseconds of rank 0's clock since 1970.
        steps: for a single rank, its ops, for rows of single ops.
    """
    events = [event for trace in traces for event in _rank_events(trace, steps)]
    clocks = {f"rank {t.rank}": f"{t.offset.offset_us:+.0f} us, +-{t.offset.uncertainty_us:.0f} us" for t in traces}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"clock offsets": clocks}})


def _rank_events(trace: RankTrace, steps: Sequence[Step]) -> Iterator[Event]:
    yield _name("process_name", trace.rank, 0, f"rank {trace.rank} on host {trace.host}")
    yield {"ph": "M", "name": "process_sort_index", "pid": trace.rank, "tid": 0, "args": {"sort_index": trace.rank}}
    servers = sorted({span.row for span in trace.spans} - set(KINDS), key=lambda row: int(row.split()[-1]))
    rows = ["step", *KINDS, *servers]
    for number, row in enumerate(rows):
        yield from _row(trace.rank, number, row)
    for step in trace.steps:
        yield _complete(trace.rank, 0, "step", f"step {step.number}", step.start_us, step.end_us, {"step": step.number})
    for span in trace.spans:
        args = {"step": span.step}
        yield _complete(trace.rank, rows.index(span.row), span.row, span.name, span.start_us, span.end_us, args)
    number = len(rows)
    for group, found in _groups(trace, steps).items():
        for lane in lanes(found):
            yield from _row(trace.rank, number, group)
            for one in lane:
                yield _complete(trace.rank, number, one.kind, one.name, one.start_us, one.end_us, one.args)
            number += 1


class _Bar(NamedTuple):
    name: str
    start_us: float
    end_us: float
    kind: str
    args: Event


def _groups(trace: RankTrace, steps: Sequence[Step]) -> dict[str, list[_Bar]]:
    """A bar drawn below the rows of kinds, in as many rows as bars overlap."""
    passes = StagePasses(0, ()) if trace.passes is None else trace.passes
    ops = [op for step in steps for op in step.ops]
    return {
        "micro-batches": [_label_pass(one) for one in passes.measured],
        "predicted": [_label_pass(one) for one in passes.predicted],
        "collectives": [_label_op(op) for op in trace.collectives],
        "ops": [_label_op(op) for op in ops],
    }


def _label_pass(one: Pass) -> _Bar:
    args = {"step": one.step, "micro-batch": one.micro_batch}
    return _Bar(one.name, one.start_us, one.end_us, one.kind, args)


def _label_op(op: Op) -> _Bar:
    args = {"op": op.type} if op.server is None else {"op": op.type, "server": op.server}
    return _Bar(op.name, op.start_us, op.end_us, op.kind, args)


def _complete(rank: int, row: int, kind: str, name: str, start_us: float, end_us: float, args: Event) -> Event:
    times = {"ts": start_us, "dur": end_us - start_us}
    return {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": row, **times, "args": args}


def _row(rank: int, row: int, name: str) -> Iterator[Event]:
    yield _name("thread_name", rank, row, name)
    yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": row, "args": {"sort_index": row}}


def _name(what: str, rank: int, row: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": row, "args": {"name": name}}
