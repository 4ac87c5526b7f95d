"""Parallax: the graph for one device and `parallel_run`.

`parallax` uses the routes that the plan chooses. `parallax-ROUTE` sets that route for every table of the model,
`parallax-bf16` and `parallax-fp16` set half precision on the wire, `parallax-overlap` overlapping steps, `parallax-ucx`
UCX in place of TCP and shared memory, and `parallax-stages` the stages of a twin. `parallax-beside` is `parallax` with
the code of another checkout, which runs its own copy of this file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ops.bench.race.models.twin import Twin
from ops.bench.race.place import ROOT, InLab, Place
from ops.bench.race.systems import BESIDE, Command, script
from ops.bench.race.turns import Task, Turns, task_of_this_process, write_task, write_task_with

RANK = "OMPI_COMM_WORLD_RANK"
"""The variable with a worker's rank; `parallel_run` returns the rank of its replica."""


def commands(place: Place, task: Task) -> Iterator[Command]:
    """Yields the user's script on the first host, which launches the workers."""
    root = ROOT
    if task.system == BESIDE:
        root, task = Path(task.more["beside"]), replace(task, system="parallax")
        write_task(task)
    if isinstance(place, InLab):
        resource = place.lab.resource_file(task.workers // len(place.hosts))
        write_task_with(task, resource=str(resource))
    yield Command(place.hosts[0], script(task, root=root), root=root)


def main() -> None:
    """Runs the script, in the launcher and in every worker."""
    import tensorflow as tf

    import parallax

    task = task_of_this_process()
    if task.more.get("off"):
        from ops.bench.safety.off import turn_off

        turn_off(task.more["off"])
    model, settings = task.make_model(), task.more.get("config", {})
    if task.system == "parallax-stages":
        if not isinstance(model, Twin):
            raise ValueError(f"parallax-stages needs a twin, got {task.model}.")
        model = model.cut()
        settings = {**settings, "stages": model.ends, "micro_batches": model.micro_batches}
    graph = tf.Graph()
    with graph.as_default():
        built = model.build()
        train = built.optimizer.minimize(built.loss)
    _, _, asked = task.system.partition("-")
    wire = {"bf16": "bfloat16", "fp16": "float16"}.get(asked)
    is_route = asked and wire is None and asked not in ("overlap", "stages", "ucx")
    mpi = parallax.MPIConfig(mpirun_options="--mca pml ucx" if asked == "ucx" else "")
    config = parallax.Config(
        routes={table.name: asked for table in model.tables} if is_route else {},
        overlap=asked == "overlap",
        batch_norm="own",  # as in the other systems, whose losses are compared
        wire_dtype=wire,
        workers=task.workers,
        sess_config=task.session_config(),
        communication_config=parallax.CommunicationConfig(mpi_config=mpi),
        seed=1,
        stall_timeout_s=math.inf,  # the job is stopped between its turns, which would look like a stall
        **settings,
    )
    sess, _, rank, _ = parallax.parallel_run(graph, task.more.get("resource"), parallax_config=config)
    runs = sess.accumulate_steps
    turns = Turns(task, int(os.environ[RANK]), model, rank, runs)
    with sess:
        for number, batch in enumerate(turns, 1):
            feeds = {built.feeds[name]: [value] for name, value in batch.items()}
            if number % runs:
                sess.run(train, feeds)
                continue
            _, [loss] = sess.run([train, built.loss], feeds)
            turns.report(loss)


if __name__ == "__main__":
    main()
