"""The stages of a model in a plan, and where they have the nodes of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax.base.strict import Count, Text

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of a model, which one worker of each replica computes.

    Attributes:
        ends: ops of the forward pass that it ends with: it has these, and all that they are computed of and no stage
            before has. None for the last stage, which has the rest.
        begins: the tensors that it receives from earlier stages.
        variables: names of the variables that it trains.
        parameters: elements of these.
        held_bytes: of all variables that it holds, slots too, and of the gradients that it keeps between batches.
        cost_share: its share of the operations of the forward pass.
        sent_bytes: what it sends to other stages, and they to it, of each example where the graph leaves the batch
            open, else of each micro-batch.
    """

    ends: tuple[Text, ...]
    begins: tuple[Text, ...]
    variables: tuple[Text, ...]
    parameters: Count
    held_bytes: Count
    cost_share: Share
    sent_bytes: Count


@dataclass(frozen=True, slots=True)
class StageCut:
    """Where the nodes of a user's graph are.

    Attributes:
        count: how many stages there are.
        places: node -> stage, of the forward pass, of what autodiff made of it, and of the variables that it reads.
    """

    count: int
    places: Mapping[str, int]


def idle_share(stages: int, micro_batches: int) -> float:
    """The share of a step in which a stage has nothing to do, as the first micro-batch must come to the last one."""
    return (stages - 1) / (micro_batches + stages - 1)
