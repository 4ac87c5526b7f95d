"""Restricts a run to one stage of a model: the fetches that it has, and the tensors that other stages need of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from parallax.graph.view import node_of
from parallax.runtime.worker.session.resolved_run import ResolvedRun
from parallax.transform.passes.cut_stages import StageGraph, receive_name, send_name


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
