"""Program of every server rank: a TensorFlow server that stores variables until the workers have finished.

A server waits in the barrier that ends the job, and never counts as stalled; it sends heartbeats as a worker does. A
plan without variables on servers starts none; MPI's ports are then the only ones.
"""

from __future__ import annotations

from parallax.graph.row_updates import row_update_ops
from parallax.runtime.supervisor.preload import forget_preloaded
from parallax.runtime.worker.barrier import wait_for_all
from parallax.runtime.worker.frozen_ops import frozen_ops
from parallax.runtime.worker.heartbeat import watching
from parallax.runtime.worker.main import check_fenced
from parallax.runtime.worker.ranks import membership
from parallax.transform.building.all_to_all import native_ops


def main() -> None:
    """Serves until all workers have succeeded; a job that fails is ended by its launcher."""
    check_fenced(forget_preloaded())
    with watching(serves=True), membership() as members:
        native_ops()  # a partition's initial value may need one of the ops, and its update others
        row_update_ops()
        frozen_ops()
        members.start()
        wait_for_all(members.world)


if __name__ == "__main__":
    main()
