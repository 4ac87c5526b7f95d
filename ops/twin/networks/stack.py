"""Networks of dense layers of one width: one that cores can compute, to check the twin, and a wide one."""

from __future__ import annotations

from ops.twin.networks import Ids, LayerOf, Network, Rows, Weights

WIDTH, LAYERS, TABLE_ROWS = 512, 8, 20_000
WIDE = 4096


def stack() -> Network:
    """Returns a table followed by dense layers, all of one width."""
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


def wide() -> Network:
    """Returns dense layers so wide that their gradients outweigh the activations of a batch."""
    layers = [
        LayerOf(f"layer_{n}", WIDE * WIDE, (Weights(f"weights_{n}", (WIDE, WIDE)),), activations=WIDE)
        for n in range(LAYERS)
    ]
    return Network("examples", 1, "momentum", tuple(layers))
