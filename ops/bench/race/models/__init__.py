"""The models of a race. Each is a frozen dataclass of its sizes that builds its graph and draws its batches.

A model is written once, for one device, with nothing of any system in it. What differs between the processes of a job
(batches, drawn negatives) is fed, so that every system trains on the same numbers; initial values are drawn from seeds
in a way that cutting a variable into partitions does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Built:
    """A model in the default graph.

    Attributes:
        loss: scalar tensor, the mean over this worker's batch.
        optimizer: a tf.compat.v1.train.Optimizer, not applied yet.
        feeds: placeholder by name.
    """

    loss: Any
    optimizer: Any
    feeds: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """A variable of which a step touches some rows.

    Attributes:
        name: of the variable.
        rows: how many it has.
        width: elements of a row.
        ids: names of the feeds that say which rows are touched.
    """

    name: str
    rows: int
    width: int
    ids: tuple[str, ...]


class Model(Protocol):
    """What every model of a race can do; its dataclass fields are its sizes."""

    @property
    def unit(self) -> str:
        """What a step's throughput is counted in: `words`, `pairs`, `examples`, `images`."""

    @property
    def units(self) -> int:
        """How many of them one worker's step takes."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The variables that are looked up by row."""

    def build(self) -> Built:
        """Builds the model in the default graph, for one device."""

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """What worker `worker` feeds in step `step`, by the names of the feeds; the same in every process."""


def model_of(name: str, **sizes: Any) -> Model:
    """The model called `name`, with sizes other than its own where given.

    Raises:
        ValueError: there is no such model.
    """
    from ops.bench.race.models.dense import Dense
    from ops.bench.race.models.embed import Embed
    from ops.bench.race.models.generated import Generated
    from ops.bench.race.models.lm import LM
    from ops.bench.race.models.nmt import NMT
    from ops.bench.race.models.recsys import RecSys
    from ops.bench.race.models.translation import Translation
    from ops.bench.race.models.twin import Twin
    from ops.bench.race.models.word2vec import Word2Vec

    known = {
        "dense": Dense,
        "embed": Embed,
        "generated": Generated,
        "lm": LM,
        "nmt": NMT,
        "recsys": RecSys,
        "translation": Translation,
        "twin": Twin,
        "word2vec": Word2Vec,
    }
    if name not in known:
        raise ValueError(f"A model must be one of {', '.join(known)}, got {name!r}.")
    model: Model = known[name](**sizes)
    return model
