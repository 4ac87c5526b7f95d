"""The measured operations, as graphs of one rank: built by the code that builds the graphs of jobs, and run unchanged.

The measurement of an operation is its share of a run with several of them in sequence, as in a step:

    all-reduce              3, one after the other
    allgather               3: each waits for Horovod to have found it ready on all members
    all-to-all              3, as in a pull and a push: in the first the members exchange their sizes
    pull, push              2, as in a step of one of each: a run in which servers take part has an additional cost

Collectives run in a session of this process, pulls and pushes in one on TensorFlow's servers. A push is complete when
worker 0 has read the sum of all rows on the servers and has notified the others. Rows are drawn at random, equally many
of each partition.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from parallax.base.types import Array, Comm, ConfigProto, Operation, Session, Tensor, Variable
from parallax.graph.ownership import Ownership
from parallax.runtime.calibrate.points import ROW_WIDTH, SERVER_ROWS, Group, Point
from parallax.runtime.worker.ranks import SERVER_TASK, WORKER_TASK
from parallax.runtime.worker.session.channels import open_channels
from parallax.runtime.worker.session.direct import DirectRuns
from parallax.runtime.worker.teams import Teams
from parallax.transform.building import collectives
from parallax.transform.building.all_to_all import all_to_all
from parallax.transform.building.deduplicated_ids import deduplicate_ids
from parallax.transform.building.reduce_and_broadcast import QueueReducer, device_of
from parallax.transform.building.transports import Pushers, ServerTransport, TableRows
from parallax.transform.building.wire import Wire
from parallax.transform.passes import gradients_to_servers

_CHAIN = {"allreduce": 3, "alltoall": 3, "allgather": 3, "pull": 2, "push": 2}
_SCOPE = "parallax/calibrate"


class Operations:
    """The operations of one rank in a group; every member of its team must create it.

    Args:
        group: the ranks that are measured together.
        team: communicator of this rank's team.
        rank: of this worker in the job.
        host: the number of its host.
        target: this rank's TensorFlow server.
    """

    def __init__(self, group: Group, team: Comm, rank: int, host: int, target: str) -> None:
        self._group = group
        self._rank = team.rank
        self._label = f"{_SCOPE}/{group.where}_{group.members}"
        self._random = np.random.default_rng(1 + rank)
        self._direct, self._ops = self._local(Teams(team, host))
        self._on_servers = self._remote(rank, target) if group.servers else None

    def runner(self, point: Point) -> Callable[[], None]:
        """Returns a function that runs a point's operations once."""
        if self._on_servers is not None and point.operation in ("pull", "push"):
            session, ops = self._on_servers
            op, placeholders = ops[point.operation]
            feeds = dict(zip(placeholders, self._values(point), strict=True))
            return lambda: session.run(op, feeds)
        op, placeholders = self._ops[point.operation]
        feed = {tensor.name: value for tensor, value in zip(placeholders, self._values(point), strict=True)}

        def run() -> None:
            while self._direct.run((op.name,), feed) is None:  # the first call only prepares the run
                pass

        return run

    def _values(self, point: Point) -> list[Array]:
        n, count = self._group.members, point.count
        if point.operation == "alltoall":
            return [np.zeros((n * count, ROW_WIDTH), np.float32), np.full(n, count, np.int32)]
        if point.operation in ("allreduce", "allgather"):
            return [np.zeros(count, np.float32)]
        of_partition = [self._random.permutation(SERVER_ROWS)[:count] for _ in range(self._group.servers)]
        if point.operation == "pull":
            ids = [rows * self._group.servers + number for number, rows in enumerate(of_partition)]
            return [self._random.permutation(np.concatenate(ids).astype(np.int32))]
        values = np.zeros((count * self._group.servers, ROW_WIDTH), np.float32)
        return [values, np.concatenate(of_partition).astype(np.int64)]

    def _local(self, teams: Teams) -> tuple[DirectRuns, dict[str, tuple[Operation, list[Tensor]]]]:
        """The collectives, in a session of this process."""
        graph, ops = tf.Graph(), {}
        with graph.as_default(), tf.device("/cpu:0"), tf.name_scope(f"{self._label}/"):
            ops["allreduce"] = self._all_reduce()
            ops["alltoall"] = self._all_to_all()
            ops["allgather"] = self._all_gather()
        open_channels(graph.as_graph_def(), teams)
        return DirectRuns(tf.compat.v1.Session(graph=graph, config=_options())), ops

    def _all_reduce(self) -> tuple[Operation, list[Tensor]]:
        values = placeholder = tf.compat.v1.placeholder(tf.float32, [None])
        for _ in range(_CHAIN["allreduce"]):
            values = collectives.all_reduce(values, is_alike=True)
        return values.op, [placeholder]

    def _all_to_all(self) -> tuple[Operation, list[Tensor]]:
        placeholder = tf.compat.v1.placeholder(tf.float32, [None, ROW_WIDTH])
        splits = tf.compat.v1.placeholder(tf.int32, [self._group.members])
        rows, arriving = all_to_all(placeholder, splits)
        for _ in range(_CHAIN["alltoall"] - 1):
            rows, arriving = all_to_all(rows, splits, arriving=arriving)
        return rows.op, [placeholder, splits]

    def _all_gather(self) -> tuple[Operation, list[Tensor]]:
        values = placeholder = tf.compat.v1.placeholder(tf.float32, [None])
        for _ in range(_CHAIN["allgather"]):  # each depends on the previous one: identical ops would run once
            gathered = collectives.all_gather(values)
            values = gathered[: tf.size(placeholder)]
        return gathered.op, [placeholder]

    def _remote(self, rank: int, target: str) -> tuple[Session, dict[str, tuple[Operation, list[Tensor]]]]:
        """Pull and push, in a session on TensorFlow's servers."""
        v1 = tf.compat.v1
        graph, ops = tf.Graph(), {}
        home = f"/job:{WORKER_TASK}/task:{rank}"
        with graph.as_default(), tf.device(home), tf.name_scope(f"{self._label}/"):
            parts = []
            for server in range(self._group.servers):
                with tf.device(device_of(server)):
                    values = tf.zeros([SERVER_ROWS, ROW_WIDTH])
                    parts.append(v1.get_variable(f"{self._label}/part_{server}", initializer=values, use_resource=True))
            ops["pull"] = self._pull(parts)
            ops["push"] = self._push()
            initialize = v1.global_variables_initializer()
        options = _options()
        options.device_filters.extend([f"/job:{SERVER_TASK}", home])
        session = v1.Session(target, graph, options)
        if self._rank == 0:
            session.run(initialize)
        return session, ops

    def _pull(self, parts: list[Variable]) -> tuple[Operation, list[Tensor]]:
        placeholder = tf.compat.v1.placeholder(tf.int32, [None])
        devices = tuple(device_of(server) for server in range(len(parts)))
        handles = tuple(part.handle for part in parts)
        table = TableRows("t", "t", SERVER_ROWS * len(parts), handles, tf.float32, (ROW_WIDTH,), devices)
        pushers = Pushers(tuple(range(len(parts))), self._group.members)
        transport = ServerTransport(Ownership.even(len(parts)), None, Wire(_SCOPE, None), pushers)
        done: list[Operation] = []
        for number in range(_CHAIN["pull"]):
            with tf.name_scope(f"pull_{number}"), tf.control_dependencies(done):
                deduplicated = deduplicate_ids([table], [(0, tf.identity(placeholder))], transport)
                done = [transport.pull(deduplicated.first, [table], deduplicated.bases).rows.op]
        return done[0], [placeholder]

    def _push(self) -> tuple[Operation, list[Tensor]]:
        servers = self._group.servers
        meetings = QueueReducer(self._rank, self._group.members, servers)
        values = tf.compat.v1.placeholder(tf.float32, [None, ROW_WIDTH])
        indices = tf.compat.v1.placeholder(tf.int64, [None])
        done: list[Operation] = []
        for number in range(_CHAIN["push"]):
            given, taken = [], []
            with tf.name_scope(f"push_{number}"), tf.control_dependencies(done):
                pieces = zip(tf.split(values, servers), tf.split(indices, servers), strict=True)
                for server, (piece, rows) in enumerate(pieces):
                    name = f"{self._label}/accumulator_{number}/{server}"
                    with tf.device(device_of(server)):
                        handle = gradients_to_servers.accumulator(piece, SERVER_ROWS, name)
                        given.append(gradients_to_servers.contribute(handle, piece, rows, SERVER_ROWS))
                        if self._rank == 0:
                            with tf.control_dependencies(given[-1:]):
                                taken.append(gradients_to_servers.collect_sum(handle, piece, self._group.members)[0].op)
                done = [tf.group(*given, *meetings.token(taken))]
        return done[0], [values, indices]


def operations_in_a_run(operation: str) -> int:
    """The number of an operation's executions in one run, in sequence."""
    return _CHAIN[operation]


def _options() -> ConfigProto:
    """Options of a session that uses no GPU: the measured operations run on CPUs."""
    return tf.compat.v1.ConfigProto(allow_soft_placement=True, device_count={"GPU": 0})
