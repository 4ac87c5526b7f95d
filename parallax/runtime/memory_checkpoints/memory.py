"""Builds the objects that save a worker's state to the memory of hosts."""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path

from parallax.base.errors import CheckpointError, ConfigError, SessionError
from parallax.base.private_files import make_private_folder
from parallax.base.strict import shown
from parallax.base.types import Comm, Graph
from parallax.graph.spec import GraphSpec
from parallax.report.logger import log
from parallax.runtime.checkpoint.checkpoints import step_tensor
from parallax.runtime.checkpoint.format.stored_tensors import stored_variables
from parallax.runtime.checkpoint.positions import SavedPositions
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.touched_tables import build_marks
from parallax.runtime.launcher.host_memory import host_folder
from parallax.runtime.memory_checkpoints.exchange import ring
from parallax.runtime.memory_checkpoints.hook import PeerMemory
from parallax.runtime.memory_checkpoints.recovery import RecoveredState, recovered_state
from parallax.runtime.memory_checkpoints.snapshot import snapshot
from parallax.runtime.memory_checkpoints.store import PeerStore
from parallax.runtime.worker.ranks import ProcessGroup
from parallax.settings.environment import settings
from parallax.settings.parts import CheckPointConfig
from parallax.transform.passes.touched_rows import RowMemory


def memory_folder(config: CheckPointConfig) -> Path:
    """The folder of this worker's host.

    Raises:
        SessionError: the launcher has not named the job.
    """
    job = settings().memory_job
    if job is None:
        raise SessionError("A worker that puts its state into memory is started by Parallax's launcher.")
    return host_folder(config.memory_dir, job, socket.gethostname())


def state_in_memory(config: CheckPointConfig, comm: Comm) -> RecoveredState | None:
    """Finds the state that this start resumes from, if hosts have any; every worker must call it.

    Raises:
        CheckpointError: on all workers, when there was a state, and it is incomplete; on this one, when its host's
            folder cannot be made, or another user has created a file under its name.
    """
    folder = memory_folder(config)
    try:
        make_private_folder(folder)
    except OSError as error:
        raise CheckpointError(
            f"memory_dir must be able to hold a folder for the state of this job: {shown(str(error))} Or name "
            "another file system in memory in CheckPointConfig.memory_dir."
        ) from error
    return recovered_state(folder, comm)


def peer_memory(
    graph: Graph,
    places: Places,
    config: CheckPointConfig,
    members: ProcessGroup,
    touched: RowMemory,
    positions: SavedPositions | None,
    recovered: RecoveredState | None,
    unreplicated: frozenset[str],
) -> PeerMemory:
    """Adds the ops for the state in memory to the default graph, a worker's; every worker must call it.

    Args:
        graph: the user's graph.
        places: the placement of its variables' rows.
        config: interval and folder.
        members: the job.
        touched: the recorded touched rows.
        positions: the positions stored in addition.
        recovered: the state that this start resumes from.
        unreplicated: the variables of which each row is on one host only.
    """
    comm, hosts = members.workers.Dup(), members.parcel.hosts
    is_first = hosts.index(hosts[members.rank]) == members.rank
    stored = stored_variables(graph)
    variables, marks = build_access(stored, places, comm), build_marks(touched, stored, places, comm)
    everything = (*variables, *(() if positions is None else positions.variables))
    step = step_tensor(graph, places)
    if members.rank == 0:
        log.info(marks.describe(touched, "Each set in the memory of hosts contains"))
    read = snapshot(everything, marks, comm, is_first, step, unreplicated)
    store = PeerStore(memory_folder(config), comm, ring(hosts, members.rank), is_first)
    is_shared = len(set(hosts)) > 1
    return PeerMemory(config.memory_steps or 1, store, read, variables, recovered, positions, unreplicated, is_shared)


def ops_of(spec: GraphSpec, names: Collection[str]) -> frozenset[str]:
    """The ops of some variables and of their slots.

    Raises:
        ConfigError: when the graph has no variable of a name.
    """
    known = {one.name: one for one in spec.variables}
    if unknown := sorted(set(names) - known.keys()):
        raise ConfigError(
            f"memory_hosts must name variables of the graph, got {unknown[0]!r}. It has: {', '.join(known)}."
        )
    parts = {part.op for name in names for part in known[name].parts}
    return frozenset(parts | {op for name in names for slot in known[name].slots for op in slot.ops})
