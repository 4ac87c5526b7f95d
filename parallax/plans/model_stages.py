"""The stages of a model in a plan, and the assignment of its graph's nodes to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax.base.strict import Amount, Count, Text

Share = Annotated[float, Meta(ge=0.0, le=1.0)]


@dataclass(frozen=True, slots=True)
class WorkerGrid:
    """The replica and the stage of each worker, by its rank.

    Attributes:
        stages: how many; 1 where each worker has the whole model.
        replicas: how many.
        is_by_stage: whether consecutive workers have the same stage; else they form a replica.
    """

    stages: int
    replicas: int
    is_by_stage: bool = False

    def place(self, rank: int) -> tuple[int, int]:
        """The replica and the stage of a worker."""
        if self.is_by_stage:
            stage, replica = divmod(rank, self.replicas)
            return replica, stage
        return divmod(rank, self.stages)

    def find_replica(self, replica: int) -> range:
        """The ranks of a replica, by stage."""
        if self.is_by_stage:
            return range(replica, self.replicas * self.stages, self.replicas)
        return range(replica * self.stages, (replica + 1) * self.stages)

    def find_team(self, stage: int) -> range:
        """The ranks that have a stage, by replica."""
        if self.is_by_stage:
            return range(stage * self.replicas, (stage + 1) * self.replicas)
        return range(stage, self.replicas * self.stages, self.stages)


@dataclass(frozen=True, slots=True)
class StageTurn:
    """A span of a predicted step in which a stage computes one pass of one micro-batch.

    Attributes:
        micro_batch: its number.
        is_backward: whether it is the backward pass; else the forward pass.
        start_s: seconds from the start of the step.
        end_s: its end.
    """

    micro_batch: Count
    is_backward: bool
    start_s: Amount
    end_s: Amount


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of a model, which one worker of each replica computes.

    Bytes of activations are for each example where the graph leaves the batch open, else for each micro-batch.

    Attributes:
        ends: ops of the forward pass at its end: the stage has these, and all their ancestors that no earlier stage
            has. None for the last stage, which has the rest.
        begins: the tensors that it receives from earlier stages.
        variables: names of the variables that it trains.
        parameters: elements of these.
        held_bytes: of all variables that it stores, including slots, and of the gradients that it accumulates.
        cost_share: its share of the operations of the forward pass.
        sent_bytes: bytes sent to other stages.
        sent_to: these bytes by receiving stage.
        kept_bytes: bytes of the tensors of a micro-batch, fed and received ones too, that its backward pass takes.
        most_bytes: of its tensors that are alive at any one time.
        run_s: seconds of the forward and backward pass of a micro-batch; None where they are unknown.
        turns: the predicted passes of a step, ordered by start; empty where times are unknown.
    """

    ends: tuple[Text, ...]
    begins: tuple[Text, ...]
    variables: tuple[Text, ...]
    parameters: Count
    held_bytes: Count
    cost_share: Share
    sent_bytes: Count
    sent_to: tuple[Count, ...] = ()
    kept_bytes: Count = 0
    most_bytes: Count = 0
    run_s: Amount | None = None
    turns: tuple[StageTurn, ...] = ()


@dataclass(frozen=True, slots=True)
class StageCut:
    """The assignment of a user's graph to stages.

    Attributes:
        count: the number of stages.
        places: node -> stage, for the forward pass, its gradient nodes, and the variables that it reads.
    """

    count: int
    places: Mapping[str, int]


def idle_share(stages: int, micro_batches: int) -> float:
    """The idle share of a stage in a step, as the first micro-batch must reach the last stage (the pipeline bubble)."""
    return (stages - 1) / (micro_batches + stages - 1)


def count_activation_bytes(stage: StagePlan, runs: int) -> int:
    """The most bytes of a stage's tensors with `runs` runs in flight: one computes, and the others are kept."""
    return stage.kept_bytes * (runs - 1) + stage.most_bytes


def runs_in_flight(stage: int, stages: int, micro_batches: int) -> int:
    """The most micro-batches whose forward pass a stage has computed, and whose backward pass it has not."""
    return min(micro_batches, stages - stage)
