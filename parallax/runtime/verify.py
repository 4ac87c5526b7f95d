"""Checks a user's graph: k steps on N workers and on one process with the joined batch, variable by variable.

The one process runs the script's graph as it is, fed the workers' batches one after the other, and all those of an
update at once where updates take several. All workers draw the same random numbers, and so does the one process, so
that sampled candidates agree; random numbers with a batch dimension (dropout) cannot agree and must be off.
"""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from parallax.analysis.capture import initialization_phases
from parallax.analysis.launcher_graph import hold_like, meant, packed
from parallax.environment import Role, Settings, environment_with
from parallax.errors import ConfigError, GraphError
from parallax.graph_view import GraphView
from parallax.plan import Plan
from parallax.runtime.bfloat16 import options_with
from parallax.runtime.feeds import Feeds, missing_feeds, named_batch, placeholders_in, read_feeds, train_op
from parallax.runtime.job import Job
from parallax.runtime.launch import launch
from parallax.runtime.planning import analyse
from parallax.runtime.session import Session
from parallax.spec import VariableClass
from parallax.transform.edit import Worker
from parallax.transform.seeds import set_seeds
from parallax.wire import ROUNDING

v1 = tf.compat.v1
STEPS, TOLERANCE = 5, 1e-5
"""Five float32 steps; sums taken in another order differ by some 1e-7 a step, and by 1e-5 where they feed back."""

WORKERS_FILE, SINGLE_FILE, GRAPH_FILE = "workers.npz", "single.npz", "graph"


def check_feeds(graph: Any, num_workers: int, wanted: Settings) -> None:
    """Refuses, before anything is started, feeds and a fetch that the graph has not, or that cannot be joined.

    Raises:
        ConfigError: says which.
    """
    feeds = _feeds(graph, train_op(graph, wanted.fetch), wanted)
    _joined([named_batch(graph, feeds(0, rank, num_workers)) for rank in range(num_workers)])


def keep_graph(graph: Any, folder: Path) -> None:
    """Leaves the launcher's graph for the one process, which runs the script again and may draw other numbers."""
    (folder / GRAPH_FILE).write_bytes(packed(graph, math.inf))


def compare_runs(job: Job, plan: Plan, folder: Path, wanted: Settings) -> int:
    """Runs both sides and prints the largest relative difference of every variable and slot.

    Args:
        job: the workers' side.
        plan: of its graph.
        folder: where both sides leave their variables.
        wanted: steps, feeds, tolerance and seed.

    Returns:
        0 when all are within the tolerance, 1 when one is not, else the status of the side that failed.
    """
    status = launch(job) or _start_single(job, folder, replace(wanted, accumulate_steps=plan.accumulate_steps))
    if status:
        return status
    own = {v.name for v in plan.variables if v.cls == VariableClass.LOCAL}
    tolerance = tolerance_of(plan, wanted)
    with np.load(folder / WORKERS_FILE) as found, np.load(folder / SINGLE_FILE) as expected:
        rows = [(name, difference(found[name], expected[name])) for name in sorted(expected.files) if name not in own]
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"{n:{width}}  {value:.2e}{'' if value <= tolerance else '  beyond the tolerance'}" for n, value in rows]
    lines += [f"{name:{width}}  not compared: every worker keeps its own" for name in sorted(own)]
    worst = max((value for _, value in rows), default=0.0)
    verdict = "equal" if worst <= tolerance else "NOT equal"
    lines.append(
        f"{job.num_workers} workers and one process are {verdict} after {wanted.steps or STEPS} steps: "
        f"largest relative difference {worst:.2e}, tolerance {tolerance:.0e}"
    )
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    return 0 if worst <= tolerance else 1


def tolerance_of(plan: Plan, wanted: Settings) -> float:
    """What was asked for; else TOLERANCE, and with half precision its rounding once for each step.

    An update is as wrong as the gradients and rows that it was made of, and a step moves a variable by less than its
    norm. A slot of squares is twice as wrong, but has only some of the steps in it at full weight. Where products are
    computed in bfloat16 the one process does so too: it rounds a gradient of the joined batch, and each worker its own.
    """
    if wanted.tolerance is not None:
        return wanted.tolerance
    rounding = sum(ROUNDING[dtype] for dtype in (plan.wire_dtype, wanted.compute_dtype) if dtype is not None)
    return (wanted.steps or STEPS) * rounding or TOLERANCE


def difference(found: Any, expected: Any) -> float:
    """The norm of the difference relative to the variable's norm; infinite when either is not finite."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    norm = float(np.linalg.norm(expected))
    value = float(np.linalg.norm(found - expected)) / norm if norm else float(np.linalg.norm(found))
    return value if np.isfinite(value) else float("inf")


def run_worker(graph: Any, session: Session, size: int, rank: int, wanted: Settings) -> None:
    """One worker's side: runs the steps and, on worker 0, keeps all variables."""
    fetch = train_op(graph, wanted.fetch)
    feeds = _feeds(graph, fetch, wanted)
    with session:
        for number in range((wanted.steps or STEPS) * session.accumulate_steps):
            session.run(fetch, {name: [value] for name, value in named_batch(graph, feeds(number, rank, size)).items()})
        values = {name: session.run(variable)[0] for name, variable in _variables(graph).items()}
        rounding = session.exchange_report().rounding_text()
    if rank == 0:
        sys.stdout.write(f"{rounding}\n" if rounding else "")
        np.savez(Path(wanted.job_folder or "") / WORKERS_FILE, **values)


def run_single(graph: Any, wanted: Settings) -> None:
    """The one process: the script's own graph, the joined batch."""
    folder, size = Path(wanted.job_folder or ""), wanted.workers or 1
    if wanted.joined_args is None:  # with other arguments the script's own constants may be of the joined batch
        hold_like(graph, (folder / GRAPH_FILE).read_bytes())
    fetch = train_op(graph, wanted.fetch)
    feeds = _feeds(graph, fetch, wanted)
    kept, steps = wanted.accumulate_steps or 1, wanted.steps or STEPS
    drawn = [[named_batch(graph, feeds(n, rank, size)) for rank in range(size)] for n in range(kept * steps)]
    joined = [_joined(sum(drawn[first : first + kept], [])) for first in range(0, len(drawn), kept)]
    initialize = initialization_phases(analyse(graph).captured)
    initialize.append([op.name for op in graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)])
    graph_def = meant(graph, add_shapes=False)
    _open_batch(graph_def, joined[0])
    set_seeds(graph_def, frozenset(), Worker(0, 1, wanted.seed or 1, equal_randomness=True))
    one = tf.Graph()
    with one.as_default():
        try:
            tf.graph_util.import_graph_def(graph_def, name="")
            with v1.Session(graph=one, config=options_with(v1.ConfigProto(), wanted.compute_dtype)) as session:
                for phase in initialize:
                    session.run(phase)
                for batch in joined:
                    session.run(fetch.name, batch)
                values = {name: session.run(_read(graph, variable)) for name, variable in _variables(graph).items()}
        except (ValueError, tf.errors.InvalidArgumentError) as error:
            raise GraphError(_fixed_batch(str(error))) from error
    np.savez(folder / SINGLE_FILE, **values)


def _read(graph: Any, variable: Any) -> str:
    """The name of the tensor that reads a variable."""
    return str(graph.as_graph_element(variable).name)


def _fixed_batch(message: str) -> str:
    around = ("Graph execution error", "Detected at node", "Node:", "Original stack trace", "\t")
    said = " ".join(line for line in message.splitlines() if line and not line.startswith(around))
    return (
        f"The one process of a verification takes the joined batch, and the script's graph does not: {said[:300]}. "
        "Leave the batch dimension of the placeholders open (None), or give the arguments with which the script "
        "builds the joined batch: --joined-args '--batch 64'."
    )


def _start_single(job: Job, folder: Path, wanted: Settings) -> int:
    """Runs the one process and returns its exit status."""
    script = job.program[2:]  # -m parallax.runtime.worker
    arguments = script if wanted.joined_args is None else (*_program(script), *wanted.joined_args.split("\n"))
    mine = replace(wanted, role=Role.VERIFY_SINGLE, job_folder=str(folder), workers=job.num_workers, resource=None)
    argv: list[str] = [sys.executable, "-m", "parallax.runtime.script", *arguments]
    return subprocess.run(argv, env=environment_with(mine, dict(job.environment)), check=False).returncode


def _program(script: tuple[str, ...]) -> tuple[str, ...]:
    return script[:2] if script[0] == "-m" else script[:1]


def _variables(graph: Any) -> dict[str, Any]:
    return {_name(v): v for v in graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES) if v.dtype.base_dtype.is_floating}


def _name(variable: Any) -> str:
    return str(variable.name).removesuffix(":0")


def _joined(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """The workers' batches one after the other; scalars must be equal."""
    joined = {}
    for name in batches[0]:
        pieces = [batch[name] for batch in batches]
        if pieces[0].ndim:
            joined[name] = np.concatenate(pieces)
        elif all(np.array_equal(p, pieces[0]) for p in pieces):
            joined[name] = pieces[0]
        else:
            raise ConfigError(f"A scalar feed must be equal on all workers: {name!r} is {[p.item() for p in pieces]}.")
    return joined


def _open_batch(graph_def: Any, batch: dict[str, Any]) -> None:
    """Opens the first dimension of fed placeholders that the joined batch does not fit."""
    nodes = {node.name: node for node in graph_def.node}
    for name, value in batch.items():
        node = nodes.get(name.removesuffix(":0"))
        dims: Any = node.attr["shape"].shape.dim if node is not None and "shape" in node.attr else ()
        if len(dims) > 0 and np.ndim(value) > 0 and dims[0].size not in (-1, len(value)):
            dims[0].size = -1


def _feeds(graph: Any, fetch: Any, wanted: Settings) -> Feeds:
    """The feeds of a step and worker, from the user's function or file."""
    if wanted.feeds is not None:
        return read_feeds(wanted.feeds)
    view = GraphView(graph.as_graph_def())
    needed = placeholders_in(view, view.ancestors([fetch.name.split(":")[0]]))
    if needed:
        raise missing_feeds("A verification", needed)
    return lambda step, worker, size: {}
