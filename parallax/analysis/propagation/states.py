"""How a worker holds a tensor, compared with the one process that would train on the joined batch.

Plain states, from best to worst; a result is as bad as its worst input:
- `same`: equal on all workers, and what the one process would have.
- `fed`: the same if all workers feed the same scalars (the key names the placeholders).
- `batch`: comes from what is fed, and differs between workers.
- `local`: differs between workers (data, random numbers, per-worker variables).
- `opaque`: made of a gradient by an op that has no rule; must never reach shared state (the key says whose and why).

States along rows:
- `values`, `indices`: joined IndexedSlices; the one process has all workers' rows one after the other, each
  worker its own.
- `rows`: the local rows of a table (the key is the table).
- `touched`, `touched_indices`: merged gradient rows at their owner, and their local row numbers; `map` is the position
  of each joined row among them.
- `extent`: a shape or count taken from one of the above (the key is that state).
- `handle`: a variable itself (the key is its op).
"""

from __future__ import annotations

from typing import Any, NamedTuple


class State(NamedTuple):
    """A kind and what it is of."""

    kind: str
    key: tuple[Any, ...] = ()


SAME = State("same")
BATCH = State("batch")
LOCAL = State("local")
PLAIN = ("same", "fed", "batch", "local", "opaque")
ALONG_ROWS = ("values", "rows", "touched")


def worst(states: list[State]) -> State:
    """The plain state of a result whose inputs have these plain states."""
    if not states:
        return SAME
    if states.count(states[0]) == len(states):
        return states[0]
    state = max(states, key=lambda s: PLAIN.index(s.kind))
    if state.kind != "fed":
        return state
    return State("fed", tuple(sorted({name for s in states if s.kind == "fed" for name in s.key})))
