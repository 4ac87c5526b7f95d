"""The program of a real trial's ranks: short runs of all ranks, without TensorFlow and MPI, until they are ended."""

from __future__ import annotations

import time

from parallax.runtime.worker.heartbeat import watching

_RUN_S = 0.05


def main() -> None:
    """Loops for ever, like a worker that trains."""
    with watching() as watch:
        while True:
            with watch.run("train", "d"):
                time.sleep(_RUN_S)
            watch.count()


if __name__ == "__main__":
    main()
