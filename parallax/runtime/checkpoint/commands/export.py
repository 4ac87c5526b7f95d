"""`parallax checkpoint export`: a SavedModel of the forward part of a graph, or a plain checkpoint.

Values are copied from the checkpoint to the exported files a chunk at a time; no session holds them. The graph itself,
including its constants, is in memory and in the single file that TensorFlow uses for it. `saved_model.pb`, without
which a folder is no SavedModel, is written last.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from contextlib import AbstractContextManager

import tensorflow as tf
from tensorflow.core.framework.variable_pb2 import SaveSliceInfoDef, VariableDef
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from parallax.base.errors import CheckpointError
from parallax.base.strict import shown
from parallax.base.types import Graph, Variable
from parallax.runtime.checkpoint.commands.forward import ForwardGraph, forward_graph
from parallax.runtime.checkpoint.format.chain import States, is_increment, state_of
from parallax.runtime.checkpoint.format.folder import NAME, absolute, file_errors, fsync_path
from parallax.runtime.checkpoint.format.stored_rows import Readable, check_fits, copy, stored_parts
from parallax.runtime.checkpoint.format.stored_tensors import (
    CHUNK_BYTES,
    OWN_KEYS,
    CheckpointEntry,
    stored_variables,
    variable_op,
)
from parallax.runtime.checkpoint.format.writer import Writer

v1 = tf.compat.v1
_SCOPE = "parallax_export"
_SIGNATURE = "serving_default"
_MAIN_OP = "saved_model_main_op"  # TensorFlow's name of the collection with the op that a loader runs
_UNREAD = ("variant", "resource")


def export_model(
    graph: Graph,
    checkpoint: str,
    folder: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    chunk_bytes: int = CHUNK_BYTES,
) -> ForwardGraph:
    """Writes a SavedModel of the ops that some outputs need, with the signature `serving_default`.

    Args:
        graph: the user's.
        checkpoint: a folder with checkpoints, for its latest, or the prefix of one.
        folder: of the SavedModel; empty, or not existing.
        inputs: as in `forward_graph`.
        outputs: as in `forward_graph`.
        chunk_bytes: maximum of values in memory at once.

    Returns:
        The exported graph.

    Raises:
        CheckpointError: when the outputs cannot be exported, the checkpoint does not belong to this graph or is
            damaged, or files cannot be read or written.
    """
    forward = forward_graph(graph, inputs, outputs)
    variables = _global_variables(graph, forward)
    bundle = open_checkpoint(checkpoint)
    check_fits(bundle, variables, "Name a checkpoint that this script has written.")
    target = _new_folder(folder)
    model = _saved_model(graph, forward, variables)
    with _exporting(folder):
        if variables:
            writer = Writer(posixpath.join(target, "variables"), 0, chunk_bytes, name="variables")
            writer.begin()
            copy(bundle, variables, writer, chunk_bytes)
            writer.finish_files()
        path = posixpath.join(target, "saved_model.pb")
        with tf.io.gfile.GFile(path, "wb") as file:
            file.write(model)
        fsync_path(path)
        fsync_path(target)
    return forward


def export_plain(checkpoint: str, folder: str, chunk_bytes: int = CHUNK_BYTES) -> str:
    """Writes a checkpoint with the tensors that TensorFlow reads of another; returns its prefix.

    Args:
        checkpoint: a folder with checkpoints, for its latest, or the prefix of one.
        folder: of the new checkpoint; empty, or not existing.
        chunk_bytes: maximum of values in memory at once.

    Raises:
        CheckpointError: when the checkpoint is damaged, or files cannot be read or written.
    """
    bundle = open_checkpoint(checkpoint)
    user_tensors = [tensor for tensor in bundle.tensors.values() if not tensor.key.startswith(OWN_KEYS)]
    if unread := [tensor.key for tensor in user_tensors if tensor.dtype in _UNREAD]:
        raise CheckpointError(
            f"Only numbers and strings can be exported, but {shown(unread[0])} in {bundle.prefix} has another type."
        )
    target = _new_folder(folder)
    with _exporting(folder):
        name = posixpath.basename(bundle.prefix)
        if is_increment(bundle.prefix):
            name = f"{NAME}-{name.rpartition('-')[2]}"
        writer = Writer(target, 0, chunk_bytes, name=name)
        writer.begin()
        copy(bundle, [part for tensor in user_tensors for part in stored_parts(tensor)], writer, chunk_bytes)
        return writer.finish()


def open_checkpoint(checkpoint: str) -> Readable:
    """Opens the latest state of a folder, or the checkpoint with a prefix; an increment together with its chain.

    Raises:
        CheckpointError: when there is none, or an index is damaged.
    """
    path = absolute(checkpoint)
    with file_errors(f"Cannot read the checkpoint {shown(checkpoint)}", "Name another."):
        if tf.io.gfile.isdir(path):
            states = States(path)
            if states.following() is not None:
                return states.open_chain()
        prefix = path.removesuffix(".index")
        if not tf.io.gfile.exists(f"{prefix}.index"):
            raise CheckpointError(
                f"{shown(checkpoint)} is neither a folder with checkpoints nor the prefix of a checkpoint. "
                "`parallax checkpoint ls FOLDER` lists those of a folder."
            )
        return state_of(prefix)


def _new_folder(folder: str) -> str:
    """Creates a folder if it does not exist.

    Raises:
        CheckpointError: when it is not empty.
    """
    path = absolute(folder)
    with _exporting(folder):
        if tf.io.gfile.exists(path) and (not tf.io.gfile.isdir(path) or tf.io.gfile.listdir(path)):
            raise CheckpointError(f"An export needs an empty folder, but {shown(folder)} is not empty. Name another.")
        tf.io.gfile.makedirs(path)
    return path


def _exporting(folder: str) -> AbstractContextManager[None]:
    return file_errors(f"Cannot write the export to {shown(folder)}", "Free space there, or name another.")


def _global_variables(graph: Graph, forward: ForwardGraph) -> list[CheckpointEntry]:
    """Returns the variables of a forward graph as stored in a checkpoint.

    Raises:
        CheckpointError: when one is not among the global variables, which checkpoints have.
    """
    by_op = {one.op: one for one in stored_variables(graph)}
    if others := [op for op in forward.variables if op not in by_op]:
        raise CheckpointError(
            f"Exported outputs may depend on global variables only, which checkpoints hold, but "
            f"{', '.join(forward.outputs.values())} depends on {shown(others[0])}, which is not one. Name an output "
            "that comes before it."
        )
    return sorted((by_op[op] for op in forward.variables), key=lambda one: (one.key, one.offset, one.op))


def _saved_model(graph: Graph, forward: ForwardGraph, variables: Sequence[CheckpointEntry]) -> bytes:
    """Returns the content of the file `saved_model.pb`."""
    slices = _slices(graph)
    with tf.Graph().as_default() as exported:
        tf.graph_util.import_graph_def(forward.graph_def, name="")
        with tf.name_scope(f"{_SCOPE}/"):
            made = [_variable(exported, one, slices.get(one.op)) for one in variables]
            saver = v1.train.Saver(made).as_saver_def() if made else None
            if forward.initializers:
                filled = [exported.get_operation_by_name(name) for name in forward.initializers]
                exported.add_to_collection(_MAIN_OP, tf.group(*filled, name="fill_tables"))
        signature = v1.saved_model.signature_def_utils.predict_signature_def(
            {name: exported.get_tensor_by_name(tensor) for name, tensor in forward.inputs.items()},
            {name: exported.get_tensor_by_name(tensor) for name, tensor in forward.outputs.items()},
        )
        meta_graph = v1.train.export_meta_graph(graph=exported, saver_def=saver, strip_default_attrs=True)
    meta_graph.meta_info_def.tags.append(v1.saved_model.tag_constants.SERVING)
    meta_graph.signature_def[_SIGNATURE].CopyFrom(signature)
    return bytes(SavedModel(saved_model_schema_version=1, meta_graphs=[meta_graph]).SerializeToString())


def _slices(graph: Graph) -> dict[str, SaveSliceInfoDef]:
    """The slice of each part of a partitioned variable in the full one, by variable op."""
    variables = graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)
    infos = {variable_op(one): getattr(one, "_save_slice_info", None) for one in variables}
    return {op: info.to_proto() for op, info in infos.items() if info is not None}


def _variable(exported: Graph, stored: CheckpointEntry, info: SaveSliceInfoDef | None) -> Variable:
    """Wraps a variable op of an imported graph in a variable that loaders know; restoring gives it its value."""
    handle = exported.get_tensor_by_name(f"{stored.op}:0")
    definition = VariableDef(
        variable_name=handle.name,
        initializer_name=tf.no_op(name=f"restored/{stored.op}").name,
        snapshot_name=tf.raw_ops.ReadVariableOp(resource=handle, dtype=stored.dtype, name=f"read/{stored.op}").name,
        is_resource=True,
        save_slice_info_def=info,
    )
    made = v1.Variable(variable_def=definition, use_resource=True)
    exported.add_to_collection(v1.GraphKeys.GLOBAL_VARIABLES, made)
    return made
