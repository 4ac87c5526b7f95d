"""Describes a graph for training: its variables with their classes, gradients, lookups, updates and evidence.

All values are frozen: a GraphSpec can be printed, compared and stored, and a plan can be made from it without
TensorFlow.

The launcher sends a graph's spec and the sources of its gradients to the workers as JSON. The reader always has the
version of the writer; no file stores this format.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property

from parallax.base.errors import GraphError
from parallax.base.strict import checked_value, read_json

OPEN_SHAPE = (0,)
"""Represents a shape that is unknown until the program runs: such a variable has no bytes in a plan."""


class VariableClass(str, Enum):
    """The class of a variable, by the ops of the graph.

    - `sparse`: the gradient reaches the update as (values, indices), and propagation can shard the rows.
    - `not shardable`: the gradient reaches the update in that form too, but an op stopped the propagation; that op is
      the reason.
    - `mixed`: looked up by row, and the gradient is a tensor when it reaches the update.
    - `dense`: no lookup outside loops, and the gradient is a tensor.
    - `local`: no gradient, and written with values that differ between workers. An assignment of a fed value does not
      count as such: it uses worker 0's value.
    - `untrained`: no gradient, all others.
    """

    DENSE = "dense"
    SPARSE = "sparse"
    MIXED = "mixed"
    NOT_SHARDABLE = "not shardable"
    UNTRAINED = "untrained"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Part:
    """One TensorFlow variable; a partitioned variable has several. `row_offset` is its first row in the full one."""

    op: str
    shape: tuple[int, ...]
    row_offset: int = 0

    @property
    def rows(self) -> int:
        """Length of the first dimension (1 for a scalar)."""
        return self.shape[0] if self.shape else 1


@dataclass(frozen=True, slots=True)
class Slot:
    """Optimizer state, or a moving average, that follows its variable.

    Attributes:
        name: the user's name.
        ops: one TensorFlow variable for each part of the variable.
        width: its elements for each row of the variable: the same number as the variable, or fewer, such as one per
            row.
        dtype_bytes: bytes an element.
    """

    name: str
    ops: tuple[str, ...]
    width: int
    dtype_bytes: int


@dataclass(frozen=True, slots=True)
class GradientSource:
    """A gradient of one part, as delivered by autodiff.

    Attributes:
        part: the variable op.
        values: the tensor of a dense gradient, or the values of IndexedSlices `[n, width...]`.
        indices: the indices of IndexedSlices `[n]`, or None for a dense gradient.
        outside: the nodes that read the gradient outside autodiff: the user's post-processing or the update.
        found_by: `recorded` when tf.gradients or a tape ran, `name scope` or `update op` for graphs loaded from a file
            or built before Parallax was imported.
    """

    part: str
    values: str
    indices: str | None
    outside: tuple[str, ...]
    found_by: str

    @property
    def tensors(self) -> tuple[str, ...]:
        """The values, and the indices if there are any."""
        return (self.values,) if self.indices is None else (self.values, self.indices)


@dataclass(frozen=True, slots=True)
class VariableSpec:
    """One logical variable.

    Attributes:
        name: the user's name.
        shape: full shape; the first dimension counts rows.
        dtype: TensorFlow's name of the element type (`float32`).
        dtype_bytes: bytes an element.
        parts: the TensorFlow variables of which it consists, by row.
        trainable: whether the user declared it trainable.
        cls: its class.
        evidence: the ops that determine its class, one sentence each.
        reason: for `not shardable`, the op that needs all rows at once.
        gradients: the autodiff sources, by part.
        lookups: the row gathers that a training step runs.
        updates: the ops that write it from gradients.
        slots: the state that follows it.
        unmerged: whether its gradient rows must travel uncoalesced, because the post-processing has no rule for them.
        ids_per_step: upper bound of the ids a worker looks up in a step, from static shapes; None when unknown.
        is_counter: whether it has no gradient and a constant is added to it, as to a global step.
        is_open: whether it was built with an open shape, so that every worker stores all of it.
        sums: the number of functions of its gradient rows that are summed and travel concatenated.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    dtype_bytes: int
    parts: tuple[Part, ...]
    trainable: bool
    cls: VariableClass
    evidence: tuple[str, ...] = ()
    reason: str = ""
    gradients: tuple[GradientSource, ...] = ()
    lookups: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    slots: tuple[Slot, ...] = ()
    unmerged: bool = False
    ids_per_step: int | None = None
    is_counter: bool = False
    is_open: bool = False
    sums: int = 1

    @property
    def rows(self) -> int:
        """Length of the first dimension (1 for a scalar)."""
        return self.shape[0] if self.shape else 1

    @property
    def width(self) -> int:
        """Elements a row."""
        return math.prod(self.shape[1:])

    @property
    def value_bytes(self) -> int:
        """Bytes of the full value."""
        return math.prod(self.shape) * self.dtype_bytes

    @property
    def slots_bytes(self) -> int:
        """Bytes of all slots, each by its own width and type."""
        return self.rows * sum(slot.width * slot.dtype_bytes for slot in self.slots)

    @property
    def has_slices(self) -> bool:
        """Whether its gradient reaches the update as (values, indices)."""
        return any(g.indices is not None for g in self.gradients)

    @property
    def touched_rows_bound(self) -> int | None:
        """An upper bound of the distinct rows that a worker reads in a step; None when the batch is not static."""
        return None if self.ids_per_step is None else min(self.rows, self.ids_per_step)


@dataclass(frozen=True)
class GraphSpec:
    """All variables of a graph, sorted by name, and the identity of the graph.

    Attributes:
        fingerprint: SHA-256 over the structure of all nodes and functions.
        variables: every logical variable; slots are listed under the variable that they follow.
        notes: information for the user (for example gradients found by a fallback).
        model_key: the key of a model profile, by `model_key`; empty when there is none.
        layouts: whether losses are analysed by the layouts of tensors; None where that depends on the plan.
    """

    fingerprint: str
    variables: tuple[VariableSpec, ...]
    notes: tuple[str, ...] = ()
    model_key: str = ""
    layouts: bool | None = None

    def variable(self, name: str) -> VariableSpec:
        """The variable of that name; KeyError when there is none."""
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, VariableSpec]:
        return {variable.name: variable for variable in self.variables}


def model_key(variables: Sequence[VariableSpec]) -> str:
    """SHA-256 over the properties that identify a model's measurements: trained variables, lookups and their id counts.

    Two graphs with one key touch the same rows, whatever else they contain: a schedule, a summary, another constant.
    """
    seen = [
        (v.name, v.shape, v.dtype, v.cls.value, v.lookups, v.ids_per_step)
        for v in sorted(variables, key=lambda v: v.name)
        if v.updates
    ]
    return hashlib.sha256("\n".join(map(repr, seen)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _SpecAndSources:
    spec: GraphSpec
    sources: tuple[GradientSource, ...]


def spec_to_json(spec: GraphSpec, sources: Sequence[GradientSource]) -> str:
    """Serializes a spec, and all sources in their order."""
    return json.dumps({"spec": asdict(spec), "sources": [asdict(source) for source in sources]})


def spec_from_json(text: str) -> tuple[GraphSpec, tuple[GradientSource, ...]]:
    """Parses the output of `spec_to_json`.

    Raises:
        GraphError: when the text has another format.
    """
    raw = read_json(text, GraphError, "the job's message", "a graph's spec")
    try:
        checked = checked_value(raw, _SpecAndSources)
    except ValueError as error:
        raise GraphError(f"A graph's spec must be as the launcher wrote it, and {error}.") from error
    if json.loads(spec_to_json(checked.spec, checked.sources)) != raw:
        raise GraphError("A graph's spec must have every field, as the launcher wrote it, and some are missing.")
    return checked.spec, checked.sources
