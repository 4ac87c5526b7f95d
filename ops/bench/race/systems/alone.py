"""No system: every worker trains by itself, without exchanges, which measures the compute time of a race."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from ops.bench.race.place import Place
from ops.bench.race.systems import Command, script_of_worker
from ops.bench.race.turns import Task, Turns, task_of_this_process


def commands(place: Place, task: Task) -> Iterator[Command]:
    """Yields one process per worker."""
    for rank in range(task.workers):
        yield Command(place.hosts[rank * len(place.hosts) // task.workers], script_of_worker(place, task, str(rank)))


def main() -> None:
    """Runs one worker; its rank is the second argument."""
    import tensorflow as tf

    v1 = tf.compat.v1
    task = task_of_this_process()
    turns = Turns(task, int(sys.argv[2]))
    with tf.Graph().as_default():
        built = task.make_model().build()
        train = built.optimizer.minimize(built.loss)
        with v1.Session(config=task.session_config()) as sess:
            sess.run(v1.global_variables_initializer())
            for batch in turns:
                _, loss = sess.run([train, built.loss], {built.feeds[name]: value for name, value in batch.items()})
                turns.report(loss)


if __name__ == "__main__":
    main()
