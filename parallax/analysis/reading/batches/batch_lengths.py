"""Adds ops to a graph that compute a fixed batch's constants from the length of an open batch.

The length is that of the first open axis of a tensor, or a scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf

from parallax.analysis.reading.batches.batch_numbers import LengthForm
from parallax.analysis.reading.batches.constant_patterns import Pattern
from parallax.analysis.reading.construction.measured_tensors import MeasuredTensor
from parallax.base.types import Array, GraphDef, Tensor
from parallax.graph.batches import SUBSTITUTES, mark_substitute
from parallax.graph.view import node_of, tensor_name

_FORMS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "length": lambda length: length,
    "pairs": lambda length: length * (length - 1),
    "square": lambda length: length * length,
    "rest": lambda length: length - 1,
    "logarithm": tf.math.log,
}
_ENTERS = ("Enter", "RefEnter")


def add_constant(opened: GraphDef, name: str, value: Array, instead: str) -> str:
    """A constant that replaces another one, in the same loops and branches; returns its tensor, like all others."""
    with tf.Graph().as_default() as graph:
        tf.constant(value, name="value")
    made = _move_in(opened, graph.as_graph_def(), "", name, tensor_name(instead))
    before = next(one for one in opened.node if one.name == node_of(tensor_name(instead)))
    opened.node[-1].input.extend(waited for waited in before.input if waited.startswith("^"))
    return made


def add_shape(
    opened: GraphDef, batch: str, name: str, requested: Array, factors: Mapping[int, int], instead: str
) -> str:
    """A vector of lengths, of which some are multiples of the batch's.

    Args:
        opened: the graph, which is modified.
        batch: the batch tensor of open length.
        name: prefix of the ops, below `parallax_opened/`.
        requested: the vector for the fixed batch.
        factors: index of an entry -> its ratio to the batch length.
        instead: the tensor of the fixed graph that some ops read no longer.
    """
    with tf.Graph().as_default() as graph:
        length = _length(opened, batch, requested.dtype, 1)
        rows = {place: length if factor == 1 else length * factor for place, factor in factors.items()}
        entries = [rows.get(place, tf.constant(n, requested.dtype)) for place, n in enumerate(requested)]
        tf.stack(entries, name="value")
    return _move_in(opened, graph.as_graph_def(), batch, name, instead)


def add_rows(opened: GraphDef, batch: str, name: str, pattern: Pattern, instead: str) -> str:
    """A constant whose rows follow from the batch length."""
    with tf.Graph().as_default() as graph:
        tf.identity(pattern.build(_length(opened, batch, np.dtype(np.int32), 1)), name="value")
    return _move_in(opened, graph.as_graph_def(), batch, name, instead)


def measure_again(
    opened: GraphDef, measured: MeasuredTensor, dtype: int, name: str, value: Array, is_within: bool = False
) -> str:
    """Computes again a constant that TensorFlow made of a tensor when its shape was known.

    Args:
        opened: the graph, which is modified.
        measured: the tensor.
        dtype: of that tensor.
        name: of the constant.
        value: of the constant.
        is_within: whether both are in a TensorFlow 1 loop.
    """
    with tf.Graph().as_default() as graph:
        stand_in = tf.compat.v1.placeholder(tf.as_dtype(dtype), None, name="batch")
        if measured.what == "size":
            tf.size(stand_in, value.dtype, name="value")
        elif measured.what == "shape":
            tf.shape(stand_in, value.dtype, name="value")
        else:
            tf.fill(tf.shape(stand_in), tf.constant(value.flat[0]), name="value")
    return _move_in(opened, graph.as_graph_def(), measured.tensor, name, f"{name}:0", is_within)


def add_length(opened: GraphDef, batch: str, name: str, dtype: int, instead: str, factor: int = 1) -> str:
    """A multiple of the batch length, as a scalar of a type."""
    with tf.Graph().as_default() as graph:
        tf.identity(tf.cast(_length(opened, batch, np.dtype(np.int32), factor), tf.as_dtype(dtype)), name="value")
    return _move_in(opened, graph.as_graph_def(), batch, name, instead)


def add_form(
    opened: GraphDef, batch: str, name: str, dtype: int, instead: str, form: LengthForm, is_reciprocal: bool = False
) -> str:
    """A real number that is computed from the batch length, or its reciprocal, as a scalar of a type."""
    with tf.Graph().as_default() as graph:
        rows = tf.cast(_length(opened, batch, np.dtype(np.int32), 1), tf.as_dtype(dtype))
        number = _FORMS[form.what](rows)
        number = number if form.factor == 1.0 else number * tf.constant(form.factor, number.dtype)
        tf.identity(1 / number if is_reciprocal else number, name="value")
    return _move_in(opened, graph.as_graph_def(), batch, name, instead)


def add_entry(opened: GraphDef, batch: str, frames: Sequence[str]) -> str:
    """The batch length in TensorFlow 1 loops, a scalar; returns its tensor.

    Args:
        opened: the graph, which is modified.
        batch: the batch tensor of open length.
        frames: the loops, from the outermost to the innermost.
    """
    by_name, name = {node.name: node for node in opened.node}, f"{SUBSTITUTES}{frames[-1]}/{node_of(batch)}"
    if name in by_name:
        return f"{name}:0"
    other = next(
        node for node in opened.node if node.op in _ENTERS and node.attr["frame_name"].s.decode() == frames[-1]
    )
    if len(frames) > 1:
        entered = add_entry(opened, batch, frames[:-1])
    else:
        entered = f"{add_length(opened, batch, f'{name}/outside', tf.int32.as_datatype_enum, batch)}:0"
    made = opened.node.add(name=name, op="Enter", input=[entered])
    for key in ("frame_name", "parallel_iterations"):
        made.attr[key].CopyFrom(other.attr[key])
    made.attr["T"].type, made.attr["is_constant"].b = tf.int32.as_datatype_enum, True
    return f"{name}:0"


def _length(opened: GraphDef, batch: str, dtype: np.dtype, factor: int) -> tf.Tensor:
    node = next(one for one in opened.node if one.name == node_of(batch))
    if node.op in _ENTERS:
        rows = tf.cast(tf.compat.v1.placeholder(tf.int32, [], name="batch"), tf.as_dtype(dtype))
        return rows if factor == 1 else rows * factor
    shape = [None if dim.size < 0 else int(dim.size) for dim in node.attr["shape"].shape.dim]
    stand_in = tf.compat.v1.placeholder(tf.as_dtype(node.attr["dtype"].type), shape, name="batch")
    if shape:
        rows = tf.shape(stand_in, out_type=tf.as_dtype(dtype))[shape.index(None)]
    else:
        rows = tf.cast(stand_in, tf.as_dtype(dtype))
    return rows if factor == 1 else rows * factor


def _move_in(opened: GraphDef, made: GraphDef, batch: str, name: str, instead: str, is_within: bool = False) -> str:
    """Adds a small graph's nodes under a name, with its placeholder replaced by a batch; returns its result.

    The result is marked as the substitute of a tensor, which a script may feed. In a loop it waits as that does; in a
    branch control_inputs.py has it wait.
    """
    scope = f"{SUBSTITUTES}{name}"
    _remove_previous(opened, scope)
    by_name = {node.name: node for node in opened.node}
    is_within = is_within or (bool(batch) and by_name[node_of(batch)].op in _ENTERS)
    waits = [one for one in by_name[node_of(tensor_name(instead))].input if one.startswith("^")] if is_within else []
    for node in made.node:
        if node.name == "batch":
            continue
        copy = opened.node.add()
        copy.CopyFrom(node)
        copy.name = f"{scope}/{node.name}"
        for slot, input_name in enumerate(node.input):
            copy.input[slot] = batch if input_name.split(":")[0] == "batch" else f"{scope}/{input_name}"
        if not node.input or node.name == "value":
            copy.input.extend(waits)
        if node.name == "value":
            mark_substitute(copy, instead)
    return f"{scope}/value"


def _remove_previous(opened: GraphDef, scope: str) -> None:
    """Removes the nodes that computed a result for fewer axes."""
    places = {node.name: place for place, node in enumerate(opened.node) if node.name.startswith(f"{scope}/")}
    waiting, removed = [f"{scope}/value"], set[str]()
    while waiting:
        name = waiting.pop()
        if name in places and name not in removed:
            removed.add(name)
            waiting += [node_of(tensor_name(tensor)) for tensor in opened.node[places[name]].input]
    for place in sorted((places[name] for name in removed), reverse=True):
        del opened.node[place]
