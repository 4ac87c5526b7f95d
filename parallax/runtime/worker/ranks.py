"""Assigns ranks to a job's workers and servers, exchanges their addresses, and starts MPI and the servers.

All ranks of the job call `enter` first, before the user's script: rank 0 broadcasts the job message, the workers get
their own communicator, and, if there are servers, every rank picks the port of its TensorFlow server and announces it
to all. Until a server is started its port is reserved by a bound socket, so no other process gets it.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from parallax.base.errors import LaunchError, SessionError
from parallax.base.types import Buffer, Comm, ConfigProto
from parallax.cluster.team_names import GROUP, HOST, REPLICA, STAGE
from parallax.plans.model_stages import WorkerGrid
from parallax.runtime.supervisor.control import host_address
from parallax.runtime.supervisor.preload import authenticate_to, restrict_listening
from parallax.runtime.worker.job_message import JobMessage, read_parcel
from parallax.runtime.worker.standby import prepare_spare
from parallax.runtime.worker.teams import Teams
from parallax.runtime.worker.worker_folders import WorkerFolders
from parallax.settings.environment import reach_directly, settings

WORKER_TASK, SERVER_TASK = "worker", "ps"
"""Job names in the TensorFlow cluster."""

_PIECE_BYTES = 1 << 28


class ProcessGroup:
    """The job from the view of one rank; made by `enter`.

    Attributes:
        parcel: the launcher's job message.
        world: communicator of workers and servers.
        workers: communicator of the workers only, for all communication between workers. None on a server.
        rank: number of this worker among the workers, or of this server among the servers.
        size: how many workers.
        is_server: whether this rank is a server.
        worker_addresses: `address:port` of each worker's TensorFlow server; empty without servers.
        server_addresses: `address:port` of each server; empty without servers.
        target: the target of sessions: this rank's own TensorFlow server, or empty without servers or before `start`.
        host_workers: communicator of the workers of this host, if a host has several workers and there are several
            hosts; else None. Set by `start`.
        when_built: called on a worker, with its rank, once the session exists.
        at_end: called on a worker when its script has succeeded, together with the others.
        at_close: called after that, when no session will run any more.
        folders: per-worker folders for files that all workers would write to one folder.
        grid: the replica and the stage of each worker.
        replica: of a model in stages, the replica of this worker; in an island its place there; else its rank.
        replicas: how many there are.
        stage: the stage of the model that it computes.
        island: the island to which it belongs.
        islands: how many there are; 1 where all workers train together.
        team: communicator of the workers that train together, ranked by replica: of this stage, one of each replica; of
            this island; else of all.
        stages_comm: communicator of the workers of this replica, ranked by stage; None without stages.
    """

    def __init__(
        self,
        parcel: JobMessage,
        world: Comm,
        workers: Comm,
        addresses: list[str],
        reserved_socket: socket.socket | None,
    ):
        self.parcel = parcel
        self.world = world
        self.workers = workers
        self.size = len(parcel.hosts)
        self.is_server = world.rank >= self.size
        self.rank = world.rank - self.size if self.is_server else world.rank
        self.worker_addresses = tuple(addresses[: self.size])
        self.server_addresses = tuple(addresses[self.size :])
        self.target = ""
        self.host_workers: Comm = None
        self.when_built: list[Callable[[int], None]] = []
        self.at_end: list[Callable[[], None]] = []
        self.at_close: list[Callable[[], None]] = []
        self.folders = WorkerFolders(self.rank)
        self.replica, self.replicas, self.stage = self.rank, self.size, 0
        self.island, self.islands = 0, 1
        self.team, self.stages_comm = workers, None
        self.grid = WorkerGrid(1, self.size)
        self._reserved_socket = reserved_socket
        self._is_started = False
        self._server: Any = None  # lives as long as the process

    def form_teams(self, grid: WorkerGrid, islands: int = 1) -> None:
        """Groups the workers into replicas of a model in stages, or consecutive ones into islands.

        Every worker must call it, before `start`.

        Args:
            grid: the replica and the stage of each worker.
            islands: the number of islands; 1 for none.
        """
        self.replica, self.replicas, self.stage = self.rank, self.size, 0
        self.island, self.islands = 0, islands
        self.team, self.stages_comm = self.workers, None
        if islands > 1:
            self.replicas = self.size // islands
            self.island, self.replica = divmod(self.rank, self.replicas)
            self.team = self.teams.find(GROUP)
        self.grid = grid
        if grid.stages > 1:
            self.replica, self.stage = grid.place(self.rank)
            self.replicas = grid.replicas
            self.team, self.stages_comm = self.teams.find(STAGE), self.teams.find(REPLICA)

    @property
    def in_script(self) -> tuple[Comm, int, int]:
        """The workers as a script counts them: their communicator, their number, and this one's rank.

        Each has a batch of its own: in islands all workers, with stages those of a stage.
        """
        if self.islands > 1:
            return self.workers, self.size, self.rank
        return self.team, self.replicas, self.replica

    @property
    def hosts_of_team(self) -> tuple[int, ...]:
        """The number of the host of each worker that trains together with this one, by replica."""
        if self.islands > 1:
            return self._hosts_of_islands[self.island]
        return tuple(self.parcel.hosts[rank] for rank in self.grid.find_team(self.stage))

    @property
    def _hosts_of_islands(self) -> list[tuple[int, ...]]:
        size = self.size // self.islands
        return [self.parcel.hosts[first : first + size] for first in range(0, self.size, size)]

    @functools.cached_property
    def teams(self) -> Teams:
        """The teams of the workers; all workers must ask for them the first time, when `form_teams` was called."""
        return Teams(self.workers, self.parcel.hosts[self.rank], self.stage, self.replica, self.island)

    def start(self, config: ConfigProto | None = None) -> None:
        """Starts this rank's TensorFlow server, if the job has servers, and Horovod on a worker.

        Every worker must call it; it waits for the others. A second call has no effect.

        Args:
            config: a ConfigProto for the TensorFlow server.

        Raises:
            LaunchError: the server cannot listen.
        """
        if self._is_started:
            return
        self._is_started = True
        if self.server_addresses:
            self._start_server(config)
        if not self.is_server:
            self._start_horovod()

    def _start_server(self, config: ConfigProto | None) -> None:
        import tensorflow as tf

        reserved = self._reserved_socket
        assert reserved is not None  # reserved until the server exists
        cluster = tf.train.ClusterSpec(
            {SERVER_TASK: list(self.server_addresses), WORKER_TASK: list(self.worker_addresses)}
        )
        addresses = [one.rpartition(":") for one in (*self.worker_addresses, *self.server_addresses)]
        reach_directly(host.strip("[]") for host, _, _ in addresses)
        authenticate_to((host.strip("[]"), int(port)) for host, _, port in addresses)
        task = SERVER_TASK if self.is_server else WORKER_TASK
        address, port = reserved.getsockname()[:2]
        try:
            with restrict_listening(address, port):
                self._server = tf.distribute.Server(cluster, task, self.rank, config=config)
        except tf.errors.OpError as error:
            raise LaunchError(
                f"A TensorFlow server cannot listen on {address}, port {port}: {error.message} Use an address of this "
                "host in the resource file, and free ports in `ports`."
            ) from error
        reserved.close()
        self._reserved_socket = None
        self.target = self._server.target

    def _start_horovod(self) -> None:
        import horovod.tensorflow as hvd

        hvd.init(comm=self.team)
        merging = [1 < len(set(hosts)) < len(hosts) for hosts in self._hosts_of_islands]
        if any(merging) and self.stages_comm is None:
            found = self.teams.find(HOST)
            self.host_workers = found if merging[self.island] else None


def enter() -> ProcessGroup:
    """Joins the job; every rank calls it once, before any other communication between ranks.

    Raises:
        LaunchError: on rank 0 when the launcher sent nothing; where no port is free.
    """
    # Before TensorFlow is loaded: both carry hwloc, and MPI must find its own.
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    modules = settings().stand_by
    if modules is not None:
        prepare_spare(modules.split(","), world)
    received = _receive() if world.rank == 0 else None
    parcel: JobMessage = world.bcast(None if received is None else received.without_raw(), 0)
    is_server = world.rank >= len(parcel.hosts)
    workers = world.Split(MPI.UNDEFINED if is_server else 0, world.rank) if parcel.servers else world
    if not is_server:
        function = bytes_of_rank_0(None if received is None else received.function, workers)
        attachment = bytes_of_rank_0(None if received is None else received.attachment, workers)
        parcel = replace(parcel, function=function, attachment=attachment)
    if not parcel.servers:
        return ProcessGroup(parcel, world, world, [], None)
    reserved = hold_port(host_address(), parcel.ports)
    addresses = world.allgather(_write(reserved))
    return ProcessGroup(parcel, world, None if is_server else workers, addresses, reserved)


def bytes_of_rank_0(data: Buffer | None, workers: Comm) -> Buffer:
    """Broadcasts rank 0's bytes (None elsewhere) to all workers; in pieces, because MPI counts to 2**31 only."""
    size = workers.bcast(None if data is None else memoryview(data).nbytes, 0)
    buffer = bytearray(size) if data is None else data
    view = memoryview(buffer)
    for begin in range(0, size, _PIECE_BYTES):
        workers.Bcast(view[begin : begin + _PIECE_BYTES], 0)
    return buffer


def _receive() -> JobMessage:
    """Reads the job message from standard input, which is empty afterwards."""
    parcel = read_parcel(sys.stdin.buffer)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return parcel


def hold_port(address: str, ports: tuple[int, int] | None) -> socket.socket:
    """Returns a socket bound to a free port of `address`, which a TensorFlow server can then take over.

    Raises:
        LaunchError: no port of the range is free, or the address is not this host's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    reason = ""
    for port in range(ports[0], ports[1] + 1) if ports is not None else (0,):
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            reserved.bind((address, port))
        except OSError as error:
            reserved.close()
            reason = str(error.strerror)
            continue
        # After the bind: with it before, two ranks would get the same port.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return reserved
    span = f"a port from {ports[0]} to {ports[1]}" if ports is not None else "any port"
    raise LaunchError(
        f"A TensorFlow server needs {span} of {address} on host {socket.gethostname()}, but got none: {reason}. The "
        "address in the resource file must be one of that host, and `ports` must be wide enough for all its workers "
        "and servers."
    )


def _write(reserved: socket.socket) -> str:
    address, port = reserved.getsockname()[:2]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


_of_this_process: ContextVar[ProcessGroup | None] = ContextVar("members", default=None)


@contextmanager
def membership() -> Iterator[ProcessGroup]:
    """Context of a job, which is joined here and returned by `current_process_group`."""
    members = enter()
    token = _of_this_process.set(members)
    try:
        yield members
    finally:
        _of_this_process.reset(token)


def current_process_group() -> ProcessGroup:
    """The job of this process.

    Raises:
        SessionError: outside a job.
    """
    members = _of_this_process.get()
    if members is None:
        raise SessionError("This works only in a worker: start the script itself, or use `parallax run`.")
    return members
