"""Every optimizer of Keras trains on workers as plain Keras does, and its table has owners; with merged rows, too."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import keras
import pytest
import tensorflow as tf  # noqa: F401  # of the tier of graphs

from parallax import optimizers as by_row
from parallax.analysis.graph_to_plan import analyse
from parallax.base.errors import ConfigError
from parallax.keras.model_steps import step_graph, trace_training
from tests.keras.in_memory import EXAMPLES, IDS, Trained, Workers, model, spec

pytestmark = pytest.mark.rotates(days=3)

O = keras.optimizers  # noqa: E741
HAS_MUON = hasattr(O, "Muon") and not keras.__version__.startswith("3.12.")
"""Keras 3.12's own Muon asks TensorFlow's variables for a path, which they do not have."""
TOLERANCE = 1e-5
"""Relative, after six steps in float32; sums over workers are in another order."""


def optimizers(newer: tuple[str, ...] = ("Muon", "ScheduleFreeAdamW")) -> dict[str, Callable[[], Any]]:
    """All of Keras's, and those that came later where this Keras has them."""
    names = "SGD Adagrad RMSprop Adadelta Adam AdamW Adamax Nadam Ftrl Lion Lamb Adafactor".split()
    there = [one for one in newer if (HAS_MUON if one == "Muon" else hasattr(O, one))]
    return {name: partial(getattr(O, name), 0.1) for name in (*names, *there)}


def spelled(members: tuple[str, ...]) -> tuple[str, ...]:
    """Names of slots without what Keras's versions spell in different ways: SGD and sgd, rmsprop and rm_sprop."""
    return tuple(one.lower().replace("rm_sprop", "rmsprop") for one in members)


OPTIMIZERS = {
    **optimizers(),
    "momentum": partial(O.SGD, 0.1, momentum=0.9),
    "nesterov": partial(O.SGD, 0.1, momentum=0.9, nesterov=True),
    "RMSprop, centered": partial(O.RMSprop, 0.01, centered=True, momentum=0.5),
    "amsgrad": partial(O.Adam, 0.1, amsgrad=True),
    "Ftrl, all terms": lambda: O.Ftrl(
        0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.01,
        l2_shrinkage_regularization_strength=0.01,
        beta=0.1,
    ),
}
SETTINGS = {
    "clipnorm": {"clipnorm": 0.01},
    "clipvalue": {"clipvalue": 0.001},
    "global_clipnorm": {"global_clipnorm": 0.01},
    "weight_decay": {"weight_decay": 0.1},
    "ema": {"use_ema": True, "ema_momentum": 0.5, "ema_overwrite_frequency": 3},
    "accumulation": {"gradient_accumulation_steps": 2},
    "accumulation, clipped": {"gradient_accumulation_steps": 2, "clipnorm": 0.01},
    "loss_scale_factor": {"loss_scale_factor": 8.0},
}
SET = {
    f"{kind.__name__}, {name}": partial(kind, 0.1, **values)
    for kind in (O.SGD, O.Adagrad, O.Adam)
    for name, values in SETTINGS.items()
}
SCHEDULED = {
    "piecewise": lambda: O.Adagrad(O.schedules.PiecewiseConstantDecay([2, 4], [0.1, 0.05, 0.01])),
    "cosine": lambda: O.Adam(O.schedules.CosineDecay(0.01, 5)),
    "exponential": lambda: O.SGD(O.schedules.ExponentialDecay(0.1, 2, 0.5), momentum=0.9),
    "of its own": lambda: O.SGD(Halved()),
}
WRAPPED = {
    # The gradients of the first step are infinite: it changes nothing but the scale.
    "scaled SGD": lambda: O.LossScaleOptimizer(O.SGD(0.1), initial_scale=2.0**127.98),
    "scaled Adagrad": lambda: O.LossScaleOptimizer(O.Adagrad(0.1)),
    "scaled Adam, clipped": lambda: O.LossScaleOptimizer(O.Adam(0.1, clipnorm=0.01)),
    **({"several": lambda: O.MultiOptimizer(several())} if hasattr(O, "MultiOptimizer") else {}),
    "derived": lambda: Derived(0.1),
}
BY_ROW = {
    "RowWiseAdagrad": lambda: by_row.RowWiseAdagrad(0.1),
    "LazyAdam": lambda: by_row.LazyAdam(0.1, clipnorm=0.01),
    "AdmittedFtrl": lambda: by_row.AdmittedFtrl(0.5, l1=0.001, admit_after=3),
    "AdmittedFtrl by odds": lambda: by_row.AdmittedFtrl(0.5, admit_probability=0.4),
    "scaled LazyAdam": lambda: O.LossScaleOptimizer(by_row.LazyAdam(0.1)),
}
IN_SHORT = [name for i, name in enumerate(SET) if i % len(SETTINGS) % 3 == i // len(SETTINGS)]
"""Each setting with one of the three."""
EVERY = {**OPTIMIZERS, **SET, **SCHEDULED, **WRAPPED, **BY_ROW}
APART = [name for name in EVERY if "loss_scale_factor" not in name]
"""Those that Keras trains with equal rows apart: it divides no sparse gradient by a scale."""
MERGED_IN_SHORT = ("SGD", "Adagrad", "Adam", "Ftrl", "Adafactor", "Adam, clipnorm", "scaled Adagrad", "LazyAdam")

MEMBERS = {
    "SGD": (),
    "momentum": ("sgd/momentum",),
    "Adagrad": ("adagrad/accumulator",),
    "Adam": ("adam/momentum", "adam/velocity"),
    "RMSprop, centered": ("rm_sprop/average_gradient", "rm_sprop/momentum", "rm_sprop/velocity"),
    "Ftrl": ("ftrl/accumulator", "ftrl/linear"),
    "Lamb": ("lamb/momentum", "lamb/velocity"),
    "Adafactor": ("adafactor/embeddings", "adafactor/velocity"),  # its row factors; its column factors have no rows
    "Adam, accumulation": ("adam/gradient_accumulator", "adam/momentum", "adam/velocity"),
    "SGD, ema": ("sgd/average",),
    "scaled Adagrad": ("adagrad/accumulator",),
    "several": ("adam/momentum", "adam/velocity"),
    "RowWiseAdagrad": ("row_wise_adagrad/accumulator",),
    "LazyAdam": ("lazy_adam/m", "lazy_adam/v"),
    "AdmittedFtrl": ("admitted_ftrl/n", "admitted_ftrl/waits", "admitted_ftrl/z"),
}
NOT_ON_SERVERS = tuple(
    name for name in (*SET, *WRAPPED, *BY_ROW) if "ema" in name or "accumulation" in name or "scaled" in name
)
"""What is written on servers in a branch has another route."""


class Halved(O.schedules.LearningRateSchedule):  # type: ignore[misc]
    """A schedule of the user's."""

    def __call__(self, step: Any) -> Any:
        return 0.1 / (1.0 + tf.cast(step, tf.float32))

    def get_config(self) -> dict[str, Any]:
        return {}


class Derived(O.Adagrad):  # type: ignore[misc]
    """Moves rows that have no gradient, as its parent does not."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(gradient + 0.01 * variable, variable, learning_rate)


def several() -> Any:
    return O.OptimizerMap(default_optimizer=O.SGD(0.1), optimizer_map={"emb.*": O.Adam(0.1)})


@cache
def workers(name: str, merges: bool = False) -> Workers:
    return Workers(EVERY[name], merges=merges)


def check(found: Trained, tolerance: float = TOLERANCE) -> None:
    assert {name: d for name, d in found.differences.items() if not d <= tolerance} == {}


@pytest.mark.rotates
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SET and n not in IN_SHORT else ()) for n in APART]
)
def test_a_table_and_its_slots_have_owners_and_end_as_in_plain_keras(name: str) -> None:
    found = workers(name).result("alltoall")
    check(found)
    assert found.routes["emb/embeddings"] == "sparse by alltoall"
    assert spelled(found.members) == spelled(MEMBERS.get(name, found.members))


@pytest.mark.rotates
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in MERGED_IN_SHORT else pytest.mark.slow) for n in EVERY]
)
def test_merged_rows_end_as_dense_gradients_of_plain_keras(name: str) -> None:
    found = workers(name, True).result("alltoall")
    check(found)
    assert found.routes["emb/embeddings"] == "sparse by alltoall"
    assert spelled(found.members) == spelled(MEMBERS.get(name, found.members))


@pytest.mark.slow
@pytest.mark.parametrize("route", ["allgather", "allreduce", "unequal owners", "ps"])
@pytest.mark.parametrize("merges", [False, True], ids=["apart", "merged"])
@pytest.mark.parametrize("name", EVERY)
def test_every_route_ends_as_plain_keras(name: str, merges: bool, route: str) -> None:
    if not merges and name not in APART:
        return
    found = workers(name, merges).result(route, 2 if route == "ps" else 0)
    check(found)
    taken = {"unequal owners": "alltoall", "ps": "alltoall" if name in NOT_ON_SERVERS else "ps"}.get(route, route)
    assert found.routes["emb/embeddings"] == f"sparse by {taken}"


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("name", "route"),
    [("Adagrad", "allgather"), ("Adam", "allreduce"), ("Adafactor", "ps"), ("AdamW", "ps"), ("LazyAdam", "allgather")],
)
def test_a_route_of_each_kind_ends_as_plain_keras(name: str, route: str) -> None:
    for merges in (False, True):
        test_every_route_ends_as_plain_keras(name, merges, route)


def test_optimizers_by_row_take_only_what_keeps_rows_and_are_made_again_from_their_configuration() -> None:
    with pytest.raises(ConfigError, match="accumulate_steps"):
        by_row.LazyAdam(gradient_accumulation_steps=2)
    with pytest.raises(ConfigError, match="by count or by probability"):
        by_row.AdmittedFtrl(admit_after=2, admit_probability=0.5)
    made = O.deserialize(O.serialize(by_row.AdmittedFtrl(0.5, l1=0.25, admit_after=3)))
    assert (type(made), made.get_config()["l1"], made.get_config()["admit_after"]) == (by_row.AdmittedFtrl, 0.25, 3)


def test_three_workers_end_as_plain_keras() -> None:
    check(Workers(EVERY["Adam, global_clipnorm"], 3).result("alltoall"))


@pytest.mark.skipif(not HAS_MUON, reason="this Keras has no Muon that trains with TensorFlow")
def test_an_update_that_multiplies_the_whole_table_says_so_and_every_worker_holds_the_table() -> None:
    apart, merged = (Workers(partial(O.Muon, 0.01, exclude_embeddings=False), merges=one) for one in (False, True))
    for workers_of, route in ((apart, "mixed by allreduce"), (merged, "not shardable by allgather")):
        found = workers_of.result("alltoall")
        check(found)
        assert found.routes["emb/embeddings"] == route
    assert "reads all its rows in every step" in found.reason


def test_layers_in_bfloat16_end_as_in_plain_keras_but_for_rounding() -> None:
    made = Workers(EVERY["Adam"], policy="mixed_bfloat16")
    found = made.result("alltoall")
    # Each worker rounds its part of a gradient to 8 bits, one process the sum: by which kernel, the processor decides.
    rounding = max(made.distances_from(None).values())
    assert 0.002 < rounding < 0.1  # plain Keras's own: 0.051 where the processor multiplies in bfloat16
    check(found, min(2 * rounding, 0.1))
    assert found.routes["emb/embeddings"] == "sparse by alltoall"


@pytest.mark.parametrize(("examples", "ids"), [(0, None), (EXAMPLES, EXAMPLES * IDS)])
def test_the_rows_of_an_open_batch_are_counted_where_its_examples_are_known(examples: int, ids: int | None) -> None:
    made = model(EVERY["SGD"])
    graph, _ = step_graph(made, {"train": trace_training(made, spec())}, examples)
    (table,) = [v for v in analyse(graph.graph).spec.variables if v.name == "emb/embeddings"]
    assert table.ids_per_step == ids
