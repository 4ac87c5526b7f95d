"""The batches of a step, of which workers may have unequally many examples: a part of parallax/plans/rewrites.py."""

from __future__ import annotations

from dataclasses import dataclass

from parallax.graph.view import Edge


@dataclass(frozen=True, slots=True)
class UnevenBatch:
    """A batch whose length may be another one on each worker.

    Attributes:
        name: by which rewrites name it.
        placeholder: whose first dimension is the length.
        length: the edge by which a tensor of the graph takes the length, and shall take that of all workers' batches;
            None where there is no such tensor.
        examples: how many examples it has on each worker, where it is of fixed length; else 0.
        alike: other sources of what is computed of the batch, whose lengths a run must find equal.
        examples_of: of elements, of which examples have unequally many, the name of the batch of these examples.
        has_end: whether the placeholder has an entry more than the batch, as where rows end.
    """

    name: str
    placeholder: str
    length: Edge | None = None
    alike: tuple[str, ...] = ()
    examples: int = 0
    examples_of: str = ""
    has_end: bool = False


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """`node` fills ragged rows up to the longest of a worker's, and shall do so up to the longest of all workers'."""

    node: str
