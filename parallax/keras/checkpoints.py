"""Checkpoints of a model in TensorFlow's format, read and written by rows: no process loads a whole large variable.

While a model is trained, the owners of rows supply them. In the process where the script continues after `fit`, a large
variable is in the checkpoint that `fit` has written, and is copied from there.
"""

from __future__ import annotations

from pathlib import Path

from parallax.base.errors import CheckpointError
from parallax.base.types import KerasModel, Variable
from parallax.functions.tracing.traced_values import InFile, bytes_of, initial_of, note_file, rows
from parallax.keras.libraries import library_of
from parallax.keras.model_steps import variables_of
from parallax.keras.train_function import training_of
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.folder import absolute, file_errors
from parallax.runtime.checkpoint.format.stored_tensors import CHUNK_BYTES, chunks, slice_text
from parallax.runtime.checkpoint.format.writer import Writer
from parallax.runtime.launcher.restarts.waiting_job import end_use

_WRITABLE = "Free space there, or name another folder."
_READABLE = "Name a checkpoint that save_checkpoint or `fit` has written, without the .index at the end."
_MISSING = (
    "The checkpoint {prefix} has no {name} of shape {shape}, which the model needs. Load a checkpoint that was "
    "written from this model; its layers and optimizer must have the same names, so name them explicitly."
)


def save_checkpoint(model: KerasModel, folder: str | Path, step: int) -> str:
    """Writes a checkpoint of a model and its optimizer: `tf.train.load_checkpoint` reads it, and `load_checkpoint`.

    It works in a callback of `fit`, in a loop of train_on_batch, and after both.

    Args:
        model: a built keras.Model.
        folder: on the host of worker 0, or of this process where the model is not being trained.
        step: the number in the checkpoint's name.

    Returns:
        The checkpoint's prefix, FOLDER/model.ckpt-STEP.

    Raises:
        CheckpointError: the files cannot be written, or those of a large variable cannot be read.
    """
    training = training_of(model)
    writer = Writer(absolute(str(folder)), step, CHUNK_BYTES)
    if training is not None:
        training.store(Path(folder), step)
    else:
        try:
            with file_errors(f"Cannot write the checkpoint of step {step} to {writer.folder}", _WRITABLE):
                writer.begin()
                for name, variable in _variables(model).items():
                    _write(writer, name, variable)
                writer.finish()
        except CheckpointError:
            writer.discard()
            raise
    return writer.prefix


def load_checkpoint(model: KerasModel, prefix: str | Path) -> None:
    """Loads a checkpoint into a model and its optimizer; large values stay in the files until they are read.

    A following `fit` starts from there: worker 0's host must have the files too.

    Args:
        model: a keras.Model; its optimizer must be built to get its values: model.optimizer.build(variables).
        prefix: of the checkpoint.

    Raises:
        CheckpointError: the files cannot be read, or lack a variable.
    """
    end_use()  # steps of a loop begin with the values of the files
    place = absolute(str(prefix))
    with file_errors(f"Cannot read the checkpoint {place}", _READABLE):
        bundle = Bundle(place)
    for name, variable in _variables(model).items():
        stored = bundle.tensors.get(name)
        shape = tuple(variable.shape.as_list())
        if stored is None or stored.shape != shape:
            raise CheckpointError(_MISSING.format(prefix=place, name=name, shape=list(shape)))
        if initial_of(variable) is not None:
            note_file(variable, InFile(place, name))
        else:
            variable.assign(bundle.read(name, (0,) * len(shape), shape))


def _variables(model: KerasModel) -> dict[str, Variable]:
    """The variables of a model and its optimizer by name, except those of metrics."""
    library = library_of(model)
    metrics = {id(library.value(one)) for metric in model.metrics for one in metric.variables}
    return {one.name: one.variable for one in variables_of(model) if id(one.variable) not in metrics}


def _write(writer: Writer, name: str, variable: Variable) -> None:
    """Adds a variable to a checkpoint, a large one in ranges of rows."""
    dtype, shape = variable.dtype.name, variable.shape.as_list()
    if initial_of(variable) is None or not shape:
        writer.add(name, "", dtype, variable.numpy())
        return
    for first, count in chunks(shape[0], bytes_of(variable) // shape[0], writer.chunk_bytes):
        box = (first, *(0 for _ in shape[1:])), (count, *shape[1:])
        is_all = count == shape[0]
        writer.add(name, "" if is_all else slice_text(tuple(shape), *box), dtype, rows(variable, first, count))
