"""Freezes a job's variables at one instant, and reads the images as the variables themselves are read.

A worker freezes its local rows of a sharded table. Worker 0 also freezes replicated variables and, by TensorFlow, those
on servers, which any worker may read. Worker 0 copies variables without rows in the same run. Images are read in their
own graph and session, in row order and once: the memory of rows that were read is released.

A process holds an image, and may be killed or stopped while it is read: it is the kernel's first choice when memory
runs out. Other workers then wait for the rows in a collective. So a lost image returns zeros from then on, and its
`Loss` gives the reason. The writer of a checkpoint asks all workers for their loss before the checkpoint gets its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import (
    Array,
    ArrayOnWorker0,
    Comm,
    ConfigProto,
    FeedDict,
    Graph,
    Operation,
    Session,
    Tensor,
    Value,
)
from parallax.runtime.checkpoint.format.folder import reason
from parallax.runtime.checkpoint.format.stored_tensors import CheckpointEntry
from parallax.runtime.checkpoint.rows.row_ops import RowOps
from parallax.runtime.checkpoint.rows.variable_rows import (
    ReadableVariable,
    ReplicatedRows,
    ReplicatedValue,
    RowsOnServers,
    ShardedRows,
    StoredVariable,
    ValueOnServer,
)
from parallax.runtime.worker.frozen_ops import frozen_ops

v1 = tf.compat.v1
_SILENT_S = 20  # timeout for a byte from the process of an image: many times a chunk's time under load


class CannotFreeze(CheckpointError):
    """The machine cannot clone a process: for lack of memory, processes or files."""


@dataclass
class ImageFailure:
    """Why an image can no longer be read by this worker; empty while it can.

    Attributes:
        reason: the error of TensorFlow's op.
    """

    reason: str = ""

    def read(self, session: Session, fetch: Tensor, fed: FeedDict, size: int) -> Value:
        """Reads bytes of an image, `[size]` uint8; zeros once it is lost.

        Args:
            session: to read with.
            fetch: the bytes.
            fed: the feeds.
            size: the number of bytes.
        """
        if not self.reason:
            try:
                return session.run(fetch, fed)
            except (tf.errors.AbortedError, tf.errors.DeadlineExceededError) as error:
                self.reason = reason(error)
        return np.zeros(size, np.uint8)


@dataclass(frozen=True, slots=True)
class FrozenRows:
    """Local rows of one variable in an image, for a session on the image's graph.

    Attributes:
        stored: the variable.
        image: name of the image.
        number: of its buffer there.
        ops: on the device of the image.
        loss: of the image.
    """

    stored: CheckpointEntry
    image: str
    number: int
    ops: ImageOps
    loss: ImageFailure

    def read(self, session: Session, low: int, high: int) -> Value:
        """Reads local rows `[high - low, ...]`; these and earlier ones cannot be read again."""
        row_bytes, shape = self.stored.row_bytes, (self.stored.shape or ())[1:]
        place = (self.number, low * row_bytes, (high - low) * row_bytes)
        fed = {self.ops.image: self.image, self.ops.place: place}
        content = self.loss.read(session, self.ops.bytes, fed, (high - low) * row_bytes)
        return content.view(tf.as_dtype(self.stored.dtype).as_numpy_dtype).reshape(high - low, *shape)

    def pick(self, session: Session, low: int, numbers: Array) -> Value:
        """Reads local rows `low + numbers`, selected by the image's process; these and earlier ones are then gone."""
        row_bytes, shape, first = self.stored.row_bytes, (self.stored.shape or ())[1:], int(numbers[0])
        place = (self.number, (low + first) * row_bytes, (int(numbers[-1]) + 1 - first) * row_bytes)
        fed = {self.ops.image: self.image, self.ops.place: place}
        fed |= {self.ops.row_bytes: row_bytes, self.ops.numbers: numbers - first}
        content = self.loss.read(session, self.ops.picked, fed, len(numbers) * row_bytes).reshape(-1)
        return content.view(tf.as_dtype(self.stored.dtype).as_numpy_dtype).reshape(len(numbers), *shape)


@dataclass(frozen=True, slots=True)
class FrozenValue:
    """A value that was copied on worker 0; None elsewhere."""

    stored: CheckpointEntry
    value: ArrayOnWorker0

    def read(self, session: Session, first: int, count: int) -> ArrayOnWorker0:
        """Returns the copy."""
        return self.value

    def read_marked(self, session: Session, first: int, marked: Array) -> ArrayOnWorker0:
        """Returns the marked rows of the copy; None without one: a replicated table is read on worker 0 alone."""
        return None if self.value is None else self.value[first : first + len(marked)][marked]


@dataclass(frozen=True, slots=True)
class ImageOps:
    """Ops that read and end images in one process: `bytes` at `place` of the image named `image`.

    Of these bytes, taken as rows of `row_bytes`, `picked` are the rows of some `numbers`.
    """

    image: Tensor
    place: Tensor
    bytes: Tensor
    row_bytes: Tensor
    numbers: Tensor
    picked: Tensor
    thaw: Operation


@dataclass(frozen=True, slots=True)
class Image:
    """All variables at one instant, one worker's part in reading them.

    Attributes:
        variables: the variables, in the same order on every worker.
        session: to read them with, of this image alone; None if nothing was frozen.
        name: in each process that has a part of it.
        ops: of each of the processes that this worker has frozen.
        process: the one that holds this worker's own part; None without one.
        loss: why this worker can no longer read it.
    """

    variables: tuple[ReadableVariable, ...]
    session: Session
    name: str
    ops: tuple[ImageOps, ...]
    process: int | None
    loss: ImageFailure = field(default_factory=ImageFailure)

    def copied_bytes(self) -> int:
        """Memory of this worker's part that the worker has written since, which therefore exists twice."""
        if self.process is None:
            return 0
        try:
            lines = Path(f"/proc/{self.process}/smaps_rollup").read_text().splitlines()
        except OSError:  # the process has ended, which readers of the image detect; or the kernel gives no numbers
            return 0
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))

    def thaw(self) -> None:
        """Ends the image."""
        _thaw(self.session, self.name, self.ops)


def _thaw(session: Session, name: str, ops: Sequence[ImageOps]) -> None:
    """Ends the parts of an image, and its session."""
    for one in ops:
        session.run(one.thaw, {one.image: name})
    if session is not None:
        session.close()


@dataclass(frozen=True, slots=True)
class Freezer:
    """Makes images of a job's variables.

    Attributes:
        variables: the variables.
        rows: by variable, (place of its process among `freezes`, number of its buffer there) of each of its `RowOps`
            that this worker reads.
        values: of each of the variables that this worker copies, in their order; None for the others.
        image: placeholder of the image's name.
        freezes: in the worker's graph, one for each process that this worker freezes.
        ops: in a separate graph, one for each process that has rows which this worker reads; first those that it
            freezes.
        options: for a session on that graph.
        has_own: whether the first of the processes is this worker's.
    """

    variables: tuple[StoredVariable, ...]
    rows: tuple[tuple[tuple[int, int], ...], ...]
    values: tuple[Tensor | None, ...]
    image: Tensor
    freezes: tuple[Tensor, ...]
    ops: tuple[ImageOps, ...]
    options: ConfigProto
    has_own: bool

    def freeze(self, session: Session, comm: Comm, name: str) -> Image:
        """Makes an image of the variables' current values; no process may write them meanwhile.

        Args:
            session: TensorFlow's session on the worker's graph.
            comm: communicator of the workers, by which the image will be read.
            name: of the image, the same on all workers.

        Raises:
            CannotFreeze: no image was made.
        """
        frozen = self.ops[: len(self.freezes)]
        graph = self.ops[0].bytes.graph if self.ops else tf.Graph()
        reading = v1.Session(session.sess_str, graph=graph, config=self.options) if self.ops else None
        fetches = [value for value in self.values if value is not None]
        try:
            processes, found = session.run([list(self.freezes), fetches], {self.image: name})
        except tf.errors.ResourceExhaustedError as error:
            _thaw(reading, name, frozen)
            raise CannotFreeze(str(error.message).strip().splitlines()[0]) from error
        copies = iter(found)
        values = [None if value is None else next(copies) for value in self.values]
        frozen_variables, loss = [], ImageFailure()
        for one, places, value in zip(self.variables, self.rows, values, strict=True):
            rows = tuple(FrozenRows(one.stored, name, number, self.ops[process], loss) for process, number in places)
            frozen_variables.append(_freeze_variable(one, rows, value, comm))
        return Image(tuple(frozen_variables), reading, name, frozen, int(processes[0]) if self.has_own else None, loss)


def freezer(variables: tuple[StoredVariable, ...], comm: Comm) -> Freezer:
    """Adds the ops that freeze variables to the default graph, a worker's.

    Args:
        variables: the variables.
        comm: communicator of the workers (mpi4py).
    """
    is_first = comm.Get_rank() == 0
    image = v1.placeholder(tf.string, [], name="image")
    read = [(at, part, ops) for at, one in enumerate(variables) for part, ops in enumerate(_read_here(one, is_first))]
    by_process: dict[str, list[tuple[int, int, RowOps]]] = {}
    for entry in sorted(read, key=lambda entry: bool(entry[2].variable.dtype != tf.resource)):  # the op's input order
        by_process.setdefault(_process(entry[2].rows), []).append(entry)
    home = _process(image)
    names = sorted(by_process, key=lambda name: (name != home, name))  # servers by name, as on all workers
    numbers: list[dict[int, tuple[int, int]]] = [{} for _ in variables]
    for process, name in enumerate(names):
        for number, (at, part, _) in enumerate(by_process[name]):
            numbers[at][part] = process, number
    options = v1.ConfigProto(device_count={"GPU": 0})
    if not home:  # a separate thread, which no op of a step occupies; sessions on TensorFlow's servers have none
        options.use_per_session_threads, options.inter_op_parallelism_threads = True, 1
    options.graph_options.rewrite_options.disable_meta_optimizer = True  # a few ops: nothing to optimize
    options.device_filters.extend(sorted({*names, home} - {""}))
    reading = tf.Graph()
    return Freezer(
        variables,
        tuple(tuple(places for _, places in sorted(by_part.items())) for by_part in numbers),
        tuple(_value(one) if is_first else None for one in variables),
        image,
        tuple(
            _freeze(image, name, [ops for *_, ops in by_process[name]]) for name in names if is_first or name == home
        ),
        tuple(_image_ops(reading, name) for name in names),
        options,
        home in by_process,
    )


def _freeze(image: Tensor, process: str, rows: Sequence[RowOps]) -> Tensor:
    """Freezes variables of one process, resources before references; their buffers are numbered in that order."""
    before = [op for one in rows for op in one.up_to_date]
    resources = [one.variable for one in rows if one.variable.dtype == tf.resource]
    references = [one.variable for one in rows if one.variable.dtype != tf.resource]
    with tf.device(f"{process}/device:CPU:0"), tf.control_dependencies(before):
        return frozen_ops().parallax_freeze(image=image, variables=resources, values=references)


def _image_ops(graph: Graph, process: str) -> ImageOps:
    with graph.as_default(), tf.device(f"{process}/device:CPU:0"):
        image, place = v1.placeholder(tf.string, []), v1.placeholder(tf.int64, [3])
        content = frozen_ops().parallax_frozen_bytes(image=image, place=place, silent_s=_SILENT_S)
        row_bytes, numbers = v1.placeholder(tf.int64, []), v1.placeholder(tf.int64, [None])
        picked = tf.gather(tf.reshape(content, tf.stack([-1, row_bytes])), numbers)
        return ImageOps(image, place, content, row_bytes, numbers, picked, frozen_ops().parallax_thaw(image=image))


def _process(tensor: Tensor) -> str:
    """The process of an op, `/job:J/task:T`; empty if there is one process only."""
    place = tf.DeviceSpec.from_string(tensor.device or "")
    return "" if place.job is None else f"/job:{place.job}/task:{place.task}"


def _read_here(one: StoredVariable, is_first: bool) -> tuple[RowOps, ...]:
    """The readers of a variable's rows on this worker."""
    if isinstance(one, ShardedRows):
        return (one.ops,)
    if isinstance(one, ReplicatedRows) and is_first:
        return (one.ops,)
    return one.partitions if isinstance(one, RowsOnServers) else ()


def _value(one: StoredVariable) -> Tensor | None:
    """The tensor by which worker 0 reads a variable without rows."""
    if isinstance(one, ValueOnServer):
        return one.served.access.value
    return one.access.value if isinstance(one, ReplicatedValue) else None


def _freeze_variable(
    one: StoredVariable, rows: tuple[FrozenRows, ...], value: ArrayOnWorker0, comm: Comm
) -> ReadableVariable:
    """Returns the reader of a variable in an image."""
    if isinstance(one, ShardedRows):
        return ShardedRows(one.stored, rows[0], one.ownership, comm)
    if isinstance(one, RowsOnServers):
        return RowsOnServers(one.stored, rows, None, comm)
    if isinstance(one, ReplicatedRows) and rows:
        return ReplicatedRows(one.stored, rows[0], comm)
    return FrozenValue(one.stored, value)
