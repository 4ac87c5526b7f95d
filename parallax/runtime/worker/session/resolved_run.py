"""A combination of fetches and feeds, resolved on a worker's graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from parallax.base.errors import SessionError
from parallax.base.types import Value
from parallax.transform.passes.full_batches import FullBatch, redirect_to_full


@dataclass(frozen=True, slots=True)
class ResolvedRun:
    """A combination of fetches and feeds, resolved on this worker's graph.

    Attributes:
        tensors: names in the worker's graph: one for each available fetched name, then the ops that are run in
            addition.
        empty: placeholders fed with empty tensors, because the run does not need their values.
        collectives: digest of the collectives that the run takes part in; empty when it takes part in none.
        fed: tensor of the user's graph -> tensor to feed, if it has another name on this worker.
        had: for each fetched name whether it is available; between updates, values that come with the update are not.
        full: fed batch -> the tensor that accepts it if it is full.
        copies: tensor of the user's graph -> more tensors to feed with the same value.
        ranks: fed placeholder that the script made without a shape -> the lowest and the highest rank of its value.
        lengths: fed placeholder of open length -> the number of examples that it must have in a run with collectives.
        absent: tensors of the user's graph that are fed, and that this worker has no part of.
        whole: of a model in stages, `tensors` in the graph of all of them; empty if the worker has all of it.
        stages: index of a fetched name -> the stage that has it, for names that one stage has.
    """

    tensors: tuple[str, ...]
    empty: dict[str, Value]
    collectives: str
    fed: Mapping[str, str] = field(default_factory=dict)
    had: tuple[bool, ...] = ()
    full: tuple[FullBatch, ...] = ()
    copies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ranks: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    lengths: Mapping[str, int] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    whole: tuple[str, ...] = ()
    stages: Mapping[int, int] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        """The tensors and ops that all workers of a replica run, in the uncut graph."""
        return self.whole or self.tensors

    def feeds(self, fed: Mapping[str, Value]) -> dict[str, Value]:
        """Converts feeds in the user's names to names of this worker's graph.

        Raises:
            SessionError: the value of a placeholder without a shape has another rank than the graph needs, or that of
                one of open length another length.
        """
        for name, (least, most) in self.ranks.items():
            if name in fed and not least <= np.ndim(fed[name]) <= most:
                raise SessionError(
                    f"Placeholder {name!r} has no shape. The ops that read it show rank "
                    f"{least if least == most else f'{least} to {most}'}, which every feed must have; got the shape "
                    f"{np.shape(fed[name])}. Create the placeholder with its shape, [] of a scalar."
                )
        for name, length in self.lengths.items():
            if name in fed and np.shape(fed[name])[:1] != (length,):
                raise SessionError(
                    f"Placeholder {name!r} must be fed {length} examples in a run in which workers communicate, as the "
                    f"graph combines them with tensors of that length; got the shape {np.shape(fed[name])}. Compute "
                    "the length of these tensors from the batch with tf.shape."
                )
        here = {self.fed.get(name, name): value for name, value in fed.items() if name not in self.absent}
        here |= {copy: fed[name] for name, copies in self.copies.items() for copy in copies if name in fed}
        return redirect_to_full(here, self.full) or here

    def values(self, fetched: Sequence[Value]) -> Sequence[Value]:
        """The results of a run of `tensors`, for each fetched name; None if unavailable."""
        if all(self.had):
            return fetched[: len(self.had)]
        values = iter(fetched)
        return [next(values) if had else None for had in self.had]
