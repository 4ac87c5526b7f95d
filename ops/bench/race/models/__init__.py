"""The models of a race. Each is a frozen dataclass of its sizes that builds its graph and draws its batches.

A model is written once, for one device, independently of any system. Data that differ between the processes of a job
(batches, drawn negatives) are fed, so that every system trains on the same numbers. Initial values are drawn from
seeds, and do not depend on how a variable is partitioned.
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
    """A variable that a step looks up by row.

    Attributes:
        name: name of the variable.
        rows: number of rows.
        width: elements of a row.
        ids: names of the feeds with the ids of touched rows.
    """

    name: str
    rows: int
    width: int
    ids: tuple[str, ...]


class Model(Protocol):
    """The interface of a race's models; dataclass fields are sizes."""

    @property
    def unit(self) -> str:
        """The unit of throughput: `words`, `pairs`, `examples`, `images`."""

    @property
    def units(self) -> int:
        """Units per worker and step."""

    @property
    def tables(self) -> tuple[Table, ...]:
        """The variables that are looked up by row."""

    def build(self) -> Built:
        """Builds the model in the default graph, for one device."""

    def batch(self, worker: int, step: int) -> dict[str, np.ndarray]:
        """Returns the feeds of worker `worker` in step `step`, by name; the same in every process."""


def model_of(name: str, **sizes: Any) -> Model:
    """Returns the model called `name`; `sizes` override its defaults.

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
