"""Manages the checkpoints of one job: their contents, the checkpoint that is loaded at the start, and their folders.

hook.py decides when they are written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import tensorflow as tf

from parallax.base.errors import ConfigError
from parallax.base.types import Comm, Graph, Session, Tensor
from parallax.graph.batches import is_of_front_end
from parallax.report.logger import log
from parallax.report.show import show
from parallax.runtime.checkpoint.checkpoint_io import Storage
from parallax.runtime.checkpoint.concurrent_checkpoints import ConcurrentCheckpoints, prepare_concurrent_checkpoints
from parallax.runtime.checkpoint.format.folder import Retention, absolute
from parallax.runtime.checkpoint.format.folder_owner import claim_of
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES, stored_variables, variable_op
from parallax.runtime.checkpoint.positions import SavedPositions
from parallax.runtime.checkpoint.rows.access_to_rows import build_access
from parallax.runtime.checkpoint.rows.row_places import Places
from parallax.runtime.checkpoint.rows.touched_tables import Marks, Succession, build_marks
from parallax.runtime.checkpoint.rows.variable_rows import StoredVariable
from parallax.runtime.supervisor.control import tell_saved
from parallax.settings.parts import CheckPointConfig
from parallax.transform.passes.touched_rows import NO_ROW_MEMORY, RowMemory

v1 = tf.compat.v1
_LOG = logging.getLogger("parallax.checkpoint")
_OF_GRAPH = (
    "Call tf.train.get_or_create_global_step() while building the graph, and pass it to the optimizer: minimize(loss, "
    "global_step=...)."
)
_OF_ONE_STAGE = (
    "Each stage of a model must have the global step for checkpoints, and {op!r} is written with what one stage alone "
    "computes. Let the optimizer count it, or leave ckpt_config out."
)
_OF_FRONT_END = (
    "Keras's `fit` counts its steps, but a loop over train_on_batch or parallax.function does not: there the script "
    "has to save with tf.train.CheckpointManager. Remove ckpt_config."
)


def check_global_step(graph: Graph, config: CheckPointConfig) -> None:
    """Requires a global step, which names checkpoints and states in memory.

    Raises:
        ConfigError: when they are configured and the graph has none.
    """
    if config.keeps_state and v1.train.get_global_step(graph) is None:
        name = "memory_steps" if config.ckpt_dir is None else "ckpt_dir"
        value = getattr(config, name)
        raise ConfigError(
            f"CheckPointConfig.{name} is {str(value)!r}, but checkpoints are named by the global step and this graph "
            f"has none. {(_OF_FRONT_END if is_of_front_end(graph) else _OF_GRAPH)}"
        )


@dataclass
class Checkpoints:
    """The checkpoints of one job, one worker's part in them.

    Attributes:
        config: the folder and the schedule.
        storage: writes and reads.
        step: tensor of the global step in the worker's graph.
        step_op: the op of the user's graph that holds it.
        succession: full checkpoints and increments.
        concurrent: writes during training; None where training waits.
        loaded_step: the step that the session was resumed at; None for a start from initial values.
        saved_step: the step of the latest one that was written or loaded.
        positions: positions of random streams and input pipelines; None where checkpoints do not have them.
        of_islands: what islands have of their own, which is read where a checkpoint has it.
    """

    config: CheckPointConfig
    storage: Storage
    step: Tensor
    step_op: str
    succession: Succession = field(default_factory=lambda: Succession(1))
    concurrent: ConcurrentCheckpoints | None = None
    loaded_step: int | None = None
    saved_step: int | None = None
    positions: SavedPositions | None = None
    of_islands: tuple[StoredVariable, ...] = ()

    def switch_placement(self, graph: Graph, places: Places) -> None:
        """Switches to another placement of rows; builds the ops for it in the default graph, a worker's.

        Checkpoints are full from then on.
        """
        accesses = build_access(stored_variables(graph), places, self.storage.comm)
        self.storage = replace(
            self.storage, variables=accesses, marks=Marks()
        )  # the new placement does not record touched rows
        self.step = step_tensor(graph, places)
        if self.concurrent is not None:
            self.concurrent.switch_variables(self.storage)

    def finish(self) -> None:
        """Waits until writing has ended, and releases the folder.

        No thread may be in MPI when the process exits.
        """
        if self.concurrent is not None:
            self.concurrent.join()
        self.storage.release_folder()

    def load(self, session: Session) -> None:
        """Takes the folder, and loads its latest checkpoint, if there is one; every worker must call it.

        Raises:
            FolderInUse: on all workers, when the folder belongs to another job.
        """
        self.storage.acquire_folder()
        moved = self.storage.load(session)
        if moved is not None:
            self.loaded_step = self.saved_step = int(session.run(self.step))
            self.succession.last = moved.header
            if self.of_islands:
                self.storage.read_present(session, moved.prefix, self.of_islands)
            anew = () if self.positions is None else self.positions.resume(session, moved.prefix)
            if self.storage.comm.Get_rank() == 0:
                notes = "".join(f"{note}\n" for note in moved.notes)
                show(f"{notes}Resumed from step {self.loaded_step}: {moved.prefix}\n")
                for note in anew:
                    log.info(f"Resumed: {note}")
                tell_saved(self.loaded_step, loaded=True)
            _LOG.info("Read: %s", moved)


def checkpoints(
    graph: Graph,
    places: Places,
    config: CheckPointConfig,
    comm: Comm,
    touched: RowMemory = NO_ROW_MEMORY,
    positions: SavedPositions | None = None,
    entries: Callable[[Sequence[StoredVariable]], tuple[StoredVariable, ...]] | None = None,
) -> Checkpoints:
    """Adds the ops for checkpoints to the default graph, a worker's.

    Args:
        graph: the user's graph.
        places: the placement of its variables' rows.
        config: has a folder.
        comm: communicator of the workers.
        touched: the rows recorded for increments.
        positions: the positions stored in addition.
        entries: what islands have of their own, given the other variables; None without islands.
    """
    check_global_step(graph, config)
    stored = stored_variables(graph)
    variables, marks = build_access(stored, places, comm), build_marks(touched, stored, places, comm)
    if config.whole_every > 1 and comm.Get_rank() == 0:
        log.info(marks.describe(touched))
    op = variable_op(v1.train.get_global_step(graph))
    if op in places.stages:
        raise ConfigError(_OF_ONE_STAGE.format(op=op))
    retention = Retention(config.keep_last, config.keep_every_hours)
    of_islands = () if entries is None else entries(variables)
    own = (*(() if positions is None else positions.variables), *of_islands)
    claim = claim_of(absolute(str(config.ckpt_dir))) if comm.Get_rank() == 0 else None
    storage = Storage(
        str(config.ckpt_dir), variables, comm, CHUNK_BYTES, retention, marks, own, config.folder_timeout_s, claim
    )
    concurrent = prepare_concurrent_checkpoints(storage) if config.beside_training and not places.stages else None
    step, succession = step_tensor(graph, places), Succession(config.whole_every)
    return Checkpoints(config, storage, step, op, succession, concurrent, positions=positions, of_islands=of_islands)


def step_tensor(graph: Graph, places: Places) -> Tensor:
    """Returns the value of the global step in the default graph, a worker's."""
    variable = v1.train.get_global_step(graph)
    handle = v1.get_default_graph().get_tensor_by_name(f"{places.here(variable_op(variable))}:0")
    with tf.name_scope("parallax/storage/"):
        if handle.dtype == tf.resource:
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=variable.dtype.base_dtype)
        return tf.identity(handle)
