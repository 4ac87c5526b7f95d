"""Writes traces in Chrome's JSON format, for Perfetto and chrome://tracing: a process per rank, a row per thread.

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU describes the format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from parallax.runtime.trace.ops import KINDS, Op, Step
from parallax.runtime.trace.rows import RankTrace, lanes

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
    groups = {"collectives": trace.collectives, "ops": tuple(op for step in steps for op in step.ops)}
    for group, ops in groups.items():
        for lane in lanes(ops):
            yield from _row(trace.rank, number, group)
            yield from _op_events(trace.rank, number, lane)
            number += 1


def _op_events(rank: int, row: int, ops: Iterable[Op]) -> Iterator[Event]:
    for op in ops:
        args = {"op": op.type} if op.server is None else {"op": op.type, "server": op.server}
        yield _complete(rank, row, op.kind, op.name, op.start_us, op.end_us, args)


def _complete(rank: int, row: int, kind: str, name: str, start_us: float, end_us: float, args: Event) -> Event:
    times = {"ts": start_us, "dur": end_us - start_us}
    return {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": row, **times, "args": args}


def _row(rank: int, row: int, name: str) -> Iterator[Event]:
    yield _name("thread_name", rank, row, name)
    yield {"ph": "M", "name": "thread_sort_index", "pid": rank, "tid": row, "args": {"sort_index": row}}


def _name(what: str, rank: int, row: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": rank, "tid": row, "args": {"name": name}}
