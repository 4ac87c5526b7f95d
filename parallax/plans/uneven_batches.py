"""The batches of a step, whose number of examples may differ among workers: a part of parallax/plans/rewrites.py."""

from __future__ import annotations

from dataclasses import dataclass

from parallax.graph.view import Edge


@dataclass(frozen=True, slots=True)
class UnevenBatch:
    """A batch whose length may differ among workers.

    Attributes:
        name: its name in rewrites.
        placeholder: the placeholder whose first dimension is the length.
        length: the edge by which a tensor of the graph reads the length, and must read that of the global batch; None
            where there is no such tensor.
        examples: its number of examples on each worker, where it has a fixed length; else 0.
        equal_length_sources: other sources of values computed from the batch, whose lengths must be equal in a run.
        examples_of: for elements, of which examples have unequally many, the name of the batch of these examples.
        has_end: whether the placeholder has one entry more than the batch, as row splits have.
    """

    name: str
    placeholder: str
    length: Edge | None = None
    equal_length_sources: tuple[str, ...] = ()
    examples: int = 0
    examples_of: str = ""
    has_end: bool = False


@dataclass(frozen=True, slots=True)
class PaddedRows:
    """`node` pads ragged rows to the longest of a worker's, and must pad to the longest of all workers'."""

    node: str
