"""Pass: makes random ops store the positions of their streams in variables, so that a checkpoint can include them.

TensorFlow's random ops count their draws inside their kernels, and the count ends with the process. Each has a
counterpart that reads its generator from a variable `[3]` (count, seed2, seed) and advances it by as much. With the
op's two seeds in that variable it draws the same numbers bit for bit, whatever its shape and however often it runs.

Draws inside loops and functions, draws for initial values, and ops without a counterpart stay unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf
from tensorflow.core.framework import types_pb2

from parallax.base.types import DType, GraphDef, NodeDef
from parallax.graph.control_flow import branches_of
from parallax.graph.ops import op_definition, takes_seeds
from parallax.graph.view import GraphView
from parallax.transform.building.all_to_all import native_ops

STREAMS = "parallax_streams"
"""The scope of these variables: unlike nodes under `parallax/`, they are the same in every plan of a job."""
_PHILOX = 1  # TensorFlow's number of the algorithm
_LIKE = {
    "RandomUniform": "StatefulUniform",
    "RandomStandardNormal": "StatefulStandardNormalV2",
    "TruncatedNormal": "StatefulTruncatedNormal",
    "RandomUniformInt": "StatefulUniformInt",
}
"""Op type -> its counterpart."""
_SAMPLERS = ("LogUniformCandidateSampler", "UniformCandidateSampler")
_SKIPPED = 2
"""Stream units of a candidate, in units of a tensor's value (candidate_sampler_ops.cc)."""


@dataclass(frozen=True, slots=True)
class RandomStream:
    """A random op whose stream position is in a variable.

    Attributes:
        op: in the user's graph.
        variable: the op of the variable, int64 `[3]`: count, seed2, seed.
        initializer: sets it to the beginning.
    """

    op: str
    variable: str
    initializer: str


@dataclass(frozen=True, slots=True)
class RandomStreams:
    """The random numbers that are drawn while a graph trains.

    Attributes:
        saved: the ops whose positions can be saved, by name.
        unsaved: the ops for which that is impossible.
    """

    saved: tuple[RandomStream, ...] = ()
    unsaved: tuple[str, ...] = ()


def keep_streams(graph_def: GraphDef, view: GraphView, initial: frozenset[str]) -> RandomStreams:
    """Adds variables for the positions of random ops; seeds must have been set.

    Args:
        graph_def: modified in place.
        view: the user's graph.
        initial: random ops of initial values, which run before these variables are initialized.
    """
    branches = branches_of(view)
    saved, others = list[RandomStream](), list[str]()
    for node in list(graph_def.node):
        if not is_stream(node) or node.name in initial:
            continue
        is_here = node.name in view.nodes and not any(branch.is_loop for branch in branches[node.name])
        if is_here and node.op in (*_LIKE, *_SAMPLERS) and "/job:ps" not in node.device:
            saved.append(_keep(node, graph_def.node.add))
        else:
            others.append(node.name)
    for function in graph_def.library.function:
        others += [f"{function.signature.name}/{node.name}" for node in function.node_def if is_stream(node)]
    return RandomStreams(tuple(sorted(saved, key=lambda one: one.op)), tuple(sorted(others)))


def is_stream(node: NodeDef) -> bool:
    """Whether a node draws from a stream that its kernel stores."""
    if not takes_seeds(node):
        return False
    definition = op_definition(node.op)
    gives_state = definition is not None and any(
        argument.type in (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT) or argument.is_ref
        for argument in definition.output_arg
    )
    return not gives_state  # such as shuffling queues


def _keep(node: NodeDef, add: Callable[..., NodeDef]) -> RandomStream:
    """Replaces a node with its counterpart."""
    scope = f"{STREAMS}/{node.name}"
    seeds = (0, node.attr["seed2"].i, node.attr["seed"].i)
    variable = add(name=f"{scope}/position", op="VarHandleOp", device=node.device)
    variable.attr["dtype"].type = types_pb2.DT_INT64
    variable.attr["shape"].shape.dim.add(size=3)
    variable.attr["shared_name"].s = variable.name.encode()
    first = _constant(add(name=f"{scope}/first", op="Const", device=node.device), seeds)
    start = add(name=f"{scope}/start", op="AssignVariableOp", device=node.device, input=[variable.name, first.name])
    start.attr["dtype"].type = types_pb2.DT_INT64
    (_convert_sampler if node.op in _SAMPLERS else _convert_op)(node, variable.name, scope, add)
    return RandomStream(node.name, variable.name, start.name)


def _convert_op(node: NodeDef, variable: str, scope: str, add: Callable[..., NodeDef]) -> None:
    """Turns a node into its counterpart."""
    algorithm = _constant(add(name=f"{scope}/algorithm", op="Const", device=node.device), _PHILOX)
    inputs = list(node.input)
    del node.input[:]
    node.input.extend([variable, algorithm.name, *inputs])
    dtype = node.attr["Tout" if node.op == "RandomUniformInt" else "dtype"].type
    of_shape = node.attr["T"].type
    node.op = _LIKE[node.op]
    _keep_attributes(node, "_class")
    node.attr["dtype"].type, node.attr["shape_dtype"].type = dtype, of_shape


def _convert_sampler(node: NodeDef, variable: str, scope: str, add: Callable[..., NodeDef]) -> None:
    """Replaces a candidate sampler with the project's own op, which reads its stream position from a variable."""
    native_ops()
    count = _SKIPPED * node.attr["num_sampled"].i
    algorithm = _constant(add(name=f"{scope}/algorithm", op="Const", device=node.device), _PHILOX, tf.int32)
    length = _constant(add(name=f"{scope}/length", op="Const", device=node.device), count, tf.uint64)
    names = [variable, algorithm.name, length.name]
    place = add(name=f"{scope}/place", op="RngReadAndSkip", device=node.device, input=names)
    waits = [name for name in node.input if name.startswith("^")]
    place.input.extend(waits)
    inputs = [name for name in node.input if not name.startswith("^")]
    del node.input[:]
    node.input.extend([*inputs, place.name, *waits])
    is_log = node.op == "LogUniformCandidateSampler"
    node.op = "ParallaxCandidates"
    _keep_attributes(node, "_class", "num_true", "num_sampled", "unique", "range_max")
    node.attr["log_uniform"].b = is_log


def _keep_attributes(node: NodeDef, *names: str) -> None:
    for name in [name for name in node.attr if name not in names]:
        del node.attr[name]


def _constant(node: NodeDef, value: object, dtype: DType = tf.int64) -> NodeDef:
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, dtype))
    node.attr["dtype"].type = dtype.as_datatype_enum
    return node
