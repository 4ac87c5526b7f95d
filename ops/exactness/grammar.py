"""The grammar: a seed and a number determine a program, which N workers must train as one process does, or refuse."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ops.exactness.draft import Draft, Program
from ops.exactness.inputs import FEATURES, IDS, LOOKUPS, Production
from ops.exactness.interactions import mixed_loss, mixed_rows
from ops.exactness.layers import LAYERS, SEQUENCES
from ops.exactness.surroundings import fed_before
from ops.exactness.updates import EXTRAS, ON_VALUES, UNCONDITIONAL, UPDATES, gradients, loss

COLUMNS = 3


def program(seed: int, number: int, workers: int | None = None) -> Program:
    """Returns the program of a number.

    Args:
        seed: of all programs.
        number: of the program.
        workers: number of workers; None draws two to five.
    """
    rng = np.random.RandomState([seed, number])
    size = int(rng.choice([2, 3, 4, 5], p=[0.6, 0.28, 0.06, 0.06]))
    is_open, v2, resource, is_float32 = rng.rand(4) < [0.6, 0.7, 0.75, 0.3]
    d = Draft(rng, is_open=bool(is_open), v2=bool(v2), resource=bool(resource), is_float32=bool(is_float32))
    optimizes = bool(rng.rand() < 0.1)
    d.tape = bool(d.resource and rng.rand() < 0.1)
    d.v2 = d.v2 or d.tape  # tapes do not support conditionals of the old kind
    _batch(d)
    d.taped = True
    for _ in range(rng.randint(0, 4)):
        _one_of(d, IDS)
    for _ in range(rng.randint(1, 4)):
        _one_of(d, (*LOOKUPS, *SEQUENCES))
        for _ in range(rng.randint(0, 3)):
            _one_of(d, (*FEATURES, *LAYERS))
        if d.chance(0.15):
            mixed_rows(d)
    if len(d.rows) > 1:
        d.new_row(" + ".join(_ends(d)), d.rows[-1])
    loss(d)
    if d.chance(0.4):
        mixed_loss(d)
    d.taped = False
    gradients(d)
    _one_of(d, UPDATES if d.resource or not d.v2 else UNCONDITIONAL)
    if any("UPDATE_OPS" in s.text for s in d.statements):
        d.add("train = tf.group(train, *v1.get_collection(v1.GraphKeys.UPDATE_OPS))")
    for _ in range(int(rng.choice([0, 1, 2], p=[0.5, 0.35, 0.15]))):
        _one_of(d, EXTRAS)
    return Program(
        f"Program {number} of seed {seed}.",
        workers or size,
        tuple(d.feeds.items()),
        tuple(d.statements),
        d.result,
        "float32" if d.is_float32 else "float64",
        is_open=d.is_open,
        control_flow_v2=d.v2,
        optimizes=optimizes,
        resource=d.resource,
        tape=d.tape,
    )


def _batch(d: Draft) -> None:
    """Adds the feeds, and the names that all programs share."""
    d.feeds |= {"ids": "rng.randint(0, 11, [rows])", "bags": f"rng.randint(0, 11, [rows, {COLUMNS}])"}
    d.add(ON_VALUES)
    d.add("step = v1.train.get_or_create_global_step()", is_kept=True)
    d.add('i0 = v1.placeholder(tf.int64, [rows], name="ids")', is_kept=True)
    d.add(f's0 = v1.placeholder(tf.int64, [rows, {COLUMNS}], name="bags")')
    d.add('y = v1.placeholder(F, [rows], name="y")', is_kept=True)
    d.bags.append(("s0", 11, COLUMNS))
    if d.chance(0.12):
        fed_before(d)
    d.add(f"n = {'tf.shape(i0)[0]' if d.is_open else 'rows'}")
    d.add(f"size = {'tf.cast(n, F)' if d.is_open or d.chance(0.3) else 'float(n)'}")
    d.counts |= {"i": 0, "s": 0}
    d.ids.append(("i0", 11))


def _ends(d: Draft) -> Sequence[str]:
    """Returns the features that nothing uses yet, so that the loss depends on all."""
    text = "\n".join(s.text for s in d.statements)
    return [h for h in d.rows if text.count(h) < 2] or d.rows[-1:]


def _one_of(d: Draft, productions: Sequence[tuple[float, Production]]) -> None:
    shares = np.array([weight for weight, _ in productions])
    productions[int(d.rng.choice(len(productions), p=shares / shares.sum()))][1](d)
