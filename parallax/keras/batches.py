"""`train_on_batch` in a script's own loop: workers run the whole script, and each trains on its rows of the batch.

The first call opens the session, as that of a step of `parallax.function` does; later ones run it, and give every
worker the logs of the global batch. What the script calls between them (evaluate, predict, get_weights) every worker
computes for itself, with the trained values, which all bring together: so all workers must call it. Worker 0 writes
files.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from parallax import call as calls
from parallax.errors import SessionError
from parallax.functions.attachments import attached, attachment_with
from parallax.functions.batch_statistics import statistics_of
from parallax.functions.input_digests import check_input
from parallax.functions.running import RunningSteps
from parallax.functions.traced import is_loaded
from parallax.keras.fitting import FitCall, read_steps
from parallax.keras.inputs import batch_length, input_of
from parallax.keras.libraries import library_of
from parallax.keras.results import state_of, take_state
from parallax.keras.training import ModelTraining
from parallax.settings.config import Config
from parallax.types import Argument, KerasModel, Nest, TensorLike, TypeSpec

_ONE_MODEL = (
    "A script's own loop trains one model over all workers, and this is another one, or `fit` after train_on_batch. "
    "Train them by `fit` each, which is a job of its own, or write the loop with parallax.function, for one step "
    "that trains both."
)
_COMPILED = (
    "The steps of a model are planned at its first train_on_batch, and it was compiled again since then. Compile it "
    "once; the learning rate may be assigned: model.optimizer.learning_rate = 0.01."
)


class ScriptTraining:
    """What this worker's script trains by train_on_batch: nothing, or one model.

    Attributes:
        training: of that model, once it is trained.
    """

    def __init__(self) -> None:
        self._model: KerasModel | None = None
        self.training: ModelTraining | None = None

    def is_of(self, model: KerasModel) -> bool:
        """Whether a model is the one."""
        return self._model is model

    def check_free(self) -> None:
        """Refuses another training in a script that trains by train_on_batch."""
        if self.training is not None:
            raise SessionError(_ONE_MODEL)

    def prepare(
        self,
        model: KerasModel,
        arguments: Mapping[str, Argument],
        config: Config,
        resource: str | Path | None,
        merge_rows: bool = False,
    ) -> None:
        """Has Keras's own `train_on_batch` train over this worker's session.

        Args:
            model: a compiled keras.Model.
            arguments: of the call by name.
            config: settings.
            resource: a resource file; None for workers on this machine.
            merge_rows: whether optimizers see equal rows of a sparse gradient added up.

        Raises:
            JobEnded: in the launching process, with the job's exit status.
            SessionError: another model is trained by this script, or the model was compiled again.
        """
        if self.training is None:
            full = {"train": batch_length(arguments.get("x"), sys.maxsize)}
            with statistics_of(config.batch_norm):
                read = read_steps(model, {}, {"train": _spec_of(model, arguments)}, merge_rows=merge_rows, full=full)
            self._begin(read, dict(arguments), config, resource)
        elif not self.is_of(model):
            raise SessionError(_ONE_MODEL)
        elif model.train_function != self.training.train_function:
            raise SessionError(_COMPILED)

    def _begin(
        self, read: FitCall, arguments: dict[str, Argument], config: Config, resource: str | Path | None
    ) -> None:
        number = calls.next_call()
        state = state_of(read) if calls.jobs_run() or is_loaded() else None
        data = input_of(arguments)
        attachment = attachment_with(state, data)
        session, size, rank, given = calls.run_to_the_end(number, read.graph.graph, attachment, config, resource)
        launched = attached(given)
        check_input(number, data, launched.digest)
        if launched.state is not None:
            take_state(read, launched.state)
        model = read.model
        self._model, self.training = model, _training(read, RunningSteps(read.graph, session, size, rank))
        model.train_function = self.training.train_function


def _training(read: FitCall, running: RunningSteps) -> ModelTraining:
    return ModelTraining(read.model, running, read.steps, read.traced, read.names, read.reset, reports_everywhere=True)


def _spec_of(model: KerasModel, arguments: Mapping[str, Argument]) -> Nest:
    """The spec of a batch of any length, as `train_on_batch` makes it of its arguments."""
    weights = arguments.get("sample_weight")
    if arguments.get("class_weight") is not None and weights is None:
        weights = library_of(model).weights_of_classes(arguments.get("y"), arguments["class_weight"])

    def spec(one: TensorLike | None) -> TypeSpec | None:
        if one is None:
            return None
        if isinstance(one, tf.RaggedTensor):
            return tf.RaggedTensorSpec([None, *one.shape[1:]], one.dtype, one.ragged_rank, one.row_splits.dtype)
        array = one if isinstance(one, tf.Tensor) else np.asarray(one)
        return tf.TensorSpec([None, *array.shape[1:]], tf.as_dtype(array.dtype))

    return tf.nest.map_structure(spec, (arguments.get("x"), arguments.get("y"), weights))
