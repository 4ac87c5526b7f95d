"""What every worker of a job runs: all-reduces of hosts that are one machine, by each method.

    python -m tests.launched WORKERS -m parallax.runtime.worker.main -m tests.runtime.sums.program RESULT.json

Worker 0 writes what came out.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import resource
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from parallax.base.errors import TransformError
from parallax.cluster.team_names import ACROSS, GROUP, HOST, LEADERS, STAGE, WORKERS
from parallax.plans.sum_methods import ANY_BYTES, METHODS, SumRule, SumRules
from parallax.runtime.worker.ranks import current_process_group
from parallax.runtime.worker.session.channels import open_channels
from parallax.runtime.worker.teams import Teams
from parallax.transform.building.all_to_all import library
from parallax.transform.building.collectives import all_reduce

LAYOUTS = {"1x4": (4,), "2x3": (3, 3), "4x2": (2, 2, 2, 2), "uneven": (3, 1, 2), "1 a host": (1, 1, 1, 1, 1)}
TYPES = ("float16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "int64")
SIZES = (0, 1, 7, 1000, 4097)
LARGE = 1 << 20
v1 = tf.compat.v1


def main() -> None:
    members = current_process_group()
    members.start()
    found: dict[str, Any] = {}
    for number, (layout, hosts) in enumerate(LAYOUTS.items()):
        count = sum(hosts)
        team = members.workers.Split(0 if members.rank < count else 1, members.rank)
        if members.rank < count:
            found[layout] = _of_layout(number, hosts, team)
    found["kinds"] = _kinds(members.workers)
    found["teams"] = _teams(members.workers)
    found["unshared"] = _unshared(members.workers)
    left = [one.name for one in Path("/dev/shm").iterdir() if "parallax" in one.name]
    found["left"] = sorted({name for of in members.workers.allgather(left) for name in of})
    if members.rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(found))


def _of_layout(number: int, hosts: Sequence[int], team: Any) -> dict[str, Any]:
    """By method, for each type the largest error in roundings, whether all have equal bits, and what was allocated."""
    teams = Teams(team, [host for host, count in enumerate(hosts) for _ in range(count)][team.rank])
    errors = {method: dict.fromkeys(TYPES, 0.0) for method in METHODS}
    digests = {method: [] for method in METHODS}
    reduced: dict[str, dict[str, Any]] = {}
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        given = {name: v1.placeholder(name, [None]) for name in TYPES}
        for method in METHODS:
            with tf.name_scope(f"layout_{number}/{method}"):
                reduced[method] = {name: all_reduce(one, is_alike=name != "float64") for name, one in given.items()}
            always = SumRules(tuple(hosts), (SumRule(ANY_BYTES, method),))
            open_channels(graph.as_graph_def(), teams, [always], 1 << 14)
        for size in (*SIZES, LARGE):
            names = ("float32",) if size == LARGE else TYPES
            parts = [_parts(names, size, rank) for rank in (range(team.size) if team.rank == 0 else [team.rank])]
            fed = {given[name]: parts[0][name] for name in names}
            fetches = {method: {name: of[name] for name in names} for method, of in reduced.items()}
            for sums in (session.run(fetches, fed), session.run(fetches, fed)):
                for method, of in sums.items():
                    digests[method].append(hashlib.sha256(b"".join(of[name].tobytes() for name in names)).hexdigest())
            for name in names if team.rank == 0 else ():
                parts_of = [part[name].astype(np.float64) for part in parts]
                whole, largest = np.sum(parts_of, 0), np.sum(np.abs(parts_of), 0)
                for method, of in sums.items():
                    errors[method][name] = max(errors[method][name], _error(of[name], whole, largest))
        made, copied = {}, {}
        for method, of in reduced.items():
            before = _counts()
            session.run(of, {given[name]: part for name, part in _parts(TYPES, 1000, team.rank).items()})
            after = _counts()
            made[method] = [after[0] - before[0], after[1] - before[1]]
            copied[method] = [after[2] - before[2], after[3] - before[3]]
    found = {}
    for method in METHODS:
        everyone = team.allgather(digests[method])
        is_equal = all(one == everyone[0] for one in everyone) and everyone[0][::2] == everyone[0][1::2]
        found[method] = {"errors": errors[method], "is_equal": is_equal, "made": made[method], "copied": copied[method]}
    return found


def _kinds(workers: Any) -> bool:
    """Least and greatest, scaled sums, and messages of several parts."""
    teams, rank, size = Teams(workers, workers.rank // 3), workers.rank, workers.size
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session, tf.name_scope("kinds"):
        own = tf.constant([1.0 + rank, -1.0 * rank])
        results = [all_reduce(own, "min"), all_reduce(own, "max"), all_reduce(own, scale=0.5)]
        open_channels(graph.as_graph_def(), teams)
        least, most, half = session.run(results)
    total = size * (size - 1) / 2
    return bool(
        (least == [1, 1 - size]).all()
        and (most == [size, 0]).all()
        and (half == [(size + total) / 2, -total / 2]).all()
    )


def _teams(workers: Any) -> list[Any]:
    """Of each worker, by team, the ranks that it sums with, as a sum of 2^rank; None where it is in none."""
    stages = 2
    hosts = [0, 0, 0, 1, 1, 2, 2, 2]
    rank = workers.rank
    teams = Teams(workers, hosts[rank], stage=rank % stages, replica=rank // stages, group=rank // 5)
    sums: dict[str, Any] = {}
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session, tf.name_scope("teams"):
        for among in (WORKERS, HOST, ACROSS, LEADERS, GROUP, STAGE):
            if among != LEADERS or hosts.index(hosts[rank]) == rank:
                sums[among] = all_reduce(tf.constant(1 << rank), among=among)
        for among in (WORKERS, HOST, ACROSS, LEADERS, GROUP, STAGE):
            teams.find(among)
        open_channels(graph.as_graph_def(), teams)
        found = {among: int(value) for among, value in session.run(sums).items()}
    try:
        teams.open("teams/nobody", LEADERS)
    except TransformError as error:
        found["refused"] = str(error)
    return list(workers.allgather(found))


def _unshared(workers: Any) -> list[Any]:
    """Sums where one worker's host cannot have shared memory."""
    teams, before = Teams(workers, workers.rank // 2), _counts()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session, tf.name_scope("unshared"):
        result = all_reduce(tf.constant(np.arange(5000.0)))
        if workers.rank == 2:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        why = ""
        for node in graph.as_graph_def().node:
            if node.op == "ParallaxAllReduce":
                why = teams.open_sums(node.name, "workers", 1 << 16, ())
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        found = session.run(result)
    return [workers.allgather(why), bool((found == np.arange(5000.0) * workers.size).all()), _counts()[0] - before[0]]


def _parts(names: Sequence[str], size: int, rank: int) -> dict[str, Any]:
    """What a worker gives, by type."""
    draws = np.random.default_rng((size, rank))
    floats, integers = draws.standard_normal(size), draws.integers(0, 9, size)
    return {name: (floats if name.startswith("float") else integers).astype(name) for name in names}


def _error(found: Any, whole: Any, sizes: Any) -> float:
    """The largest, in roundings of sums of so large parts."""
    rounding = np.finfo(found.dtype).eps if found.dtype.kind == "f" else 1.0
    return float(np.max(np.abs(found.astype(np.float64) - whole) / (rounding * np.maximum(sizes, 1)), initial=0.0))


def _counts() -> list[int]:
    counts = (ctypes.c_longlong * 4)()
    ctypes.CDLL(str(library())).parallax_sum_counts(counts)
    return list(counts)


if __name__ == "__main__":
    main()
