"""A network so small that cores compute it: what the twin is checked on."""

from __future__ import annotations

from ops.twin.networks import Ids, LayerOf, Network, Rows, Weights

WIDTH, LAYERS, TABLE_ROWS = 512, 8, 20_000


def stack() -> Network:
    """Rows of a table through dense layers, all of one width."""
    table = Rows("embedding", TABLE_ROWS, WIDTH, (Ids("ids", of_example=1),))
    layers = [
        LayerOf(
            f"layer_{n}",
            WIDTH * WIDTH,
            (Weights(f"weights_{n}", (WIDTH, WIDTH)),),
            () if n else (table,),
        )
        for n in range(LAYERS)
    ]
    return Network("examples", 1, "adagrad", tuple(layers), is_computed=True)
