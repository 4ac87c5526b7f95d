"""A combination of fetches and feeds, resolved on a worker's graph, and restricted to a stage of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from parallax.base.errors import SessionError
from parallax.base.types import Value
from parallax.graph.view import node_of
from parallax.transform.passes.cut_stages import StageGraph, receive_name, send_name
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


def of_stage(run: ResolvedRun, stages: StageGraph, runs: set[str], feeds: Mapping[str, str]) -> ResolvedRun:
    """Restricts a run of all stages to the part that one stage executes.

    Args:
        run: the run of all stages together.
        stages: the model's stages, and the one of this worker.
        runs: the nodes that all stages together run.
        feeds: fed tensor of the user's graph -> tensor of the full graph.
    """
    fed = frozenset(feeds.values())
    messages = stages.within(runs, fed)
    requested = iter(run.tensors)
    names = [next(requested) if had else None for had in run.had]
    besides = list(requested)
    where = {place: _stage_of(stages, name, fed) for place, name in enumerate(names) if name is not None}
    has_own = {place: stage in (None, stages.stage) for place, stage in where.items()}
    sends = [send_name(one) for one in messages if one.source == stages.stage]
    local_names = [name for place, name in enumerate(names) if name is not None and has_own[place]]
    more = [name for name in (*besides, *sends) if stages.is_here(node_of(name)) and name not in local_names]
    received = {one.tensor: f"{receive_name(one)}:0" for one in stages.messages if one.target == stages.stage}
    led = {
        whole_name: here if stages.is_here(node_of(here)) else received.get(here, "")
        for whole_name, here in feeds.items()
    }
    texts = [run.collectives, *(f"stage message {one.number}" for one in messages)]
    texts += [f"fetch {place} of stage {stage}" for place, stage in where.items() if stage is not None]
    is_joint = bool(run.collectives or messages or any(stage is not None for stage in where.values()))
    return replace(
        run,
        tensors=(*local_names, *dict.fromkeys(more)),
        empty={name: value for name, value in run.empty.items() if stages.is_here(node_of(name))},
        collectives=hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if is_joint else "",
        copies={
            name: tuple(copy for copy in copies if stages.is_here(node_of(copy))) for name, copies in run.copies.items()
        },
        fed={whole_name: here for whole_name, here in led.items() if here and whole_name != here},
        had=tuple(has_own.get(place, False) for place in range(len(run.had))),
        whole=run.tensors,
        absent=frozenset(whole_name for whole_name, here in led.items() if not here),
        stages={place: stage for place, stage in where.items() if stage is not None and ":" in str(names[place])},
    )


def _stage_of(stages: StageGraph, name: str, fed: frozenset[str]) -> int | None:
    """The one stage that has a tensor or op; None if every stage has it, as with a fed tensor."""
    return None if name in fed else stages.places.get(node_of(name))
