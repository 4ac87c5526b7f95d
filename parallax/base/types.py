"""Type aliases, above all for types of packages without annotations: TensorFlow's, MPI's.

To a type checker most of these are `Any`; to a reader each describes a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are passed on without copying, of any size."""
Array: TypeAlias = "npt.NDArray[Any]"
"""A NumPy array, of any element type and shape."""
ArrayOnWorker0: TypeAlias = Any
"""A NumPy array or scalar on worker 0, None elsewhere."""
PortableValue: TypeAlias = Any
"""A variable's value for another process: a NumPy array or scalar, or an `InFile` if it is in a checkpoint."""
JsonObject: TypeAlias = dict[str, Any]
"""A JSON object: numbers, strings, lists and nested objects by name."""
Argument: TypeAlias = Any
"""Arguments of a script's function, positional or by keyword, and values that are forwarded or looked up by name."""
Picklable: TypeAlias = Any
"""A Python value that can be pickled, for mpi4py."""
RandomStates: TypeAlias = tuple[Any, Any, Any]
"""Positions of random generators: the states of Python's, NumPy's and TensorFlow's."""

# TensorFlow's graphs
Graph: TypeAlias = Any
"""tf.Graph."""
FuncGraph: TypeAlias = Any
"""tensorflow.python.framework.func_graph.FuncGraph: the graph of a function's body."""
ConcreteFunction: TypeAlias = Any
"""tf.types.experimental.ConcreteFunction: a function that was traced for some specs."""
Operation: TypeAlias = Any
"""tf.Operation: a node of a tf.Graph."""
Tensor: TypeAlias = Any
"""tf.Tensor: of a graph, or with its value under eager execution."""
TensorLike: TypeAlias = Any
"""Values that TensorFlow converts to tensors: tf.Tensor, ragged and sparse ones, NumPy arrays, numbers."""
GradientTape: TypeAlias = Any
"""tf.GradientTape."""
Gradient: TypeAlias = Any
"""The gradient of a variable or tensor from autodiff: tf.Tensor, tf.IndexedSlices, or None."""
Variable: TypeAlias = Any
"""tf.Variable, of a resource or a reference."""
Handle: TypeAlias = Any
"""tf.Tensor that represents a variable: the handle of its resource, or its reference."""
DType: TypeAlias = Any
"""tf.DType."""
TensorShape: TypeAlias = Any
"""tf.TensorShape, or a value convertible to one: a static shape, which may be open."""
TypeSpec: TypeAlias = Any
"""tf.TypeSpec: the static type of a tensor."""
SparseTensor: TypeAlias = Any
"""tf.SparseTensor: indices, values and shape."""
RaggedTensor: TypeAlias = Any
"""tf.RaggedTensor, with its value."""
Nest: TypeAlias = Any
"""A structure of lists, tuples and dicts, as in `tf.nest`; also a single leaf."""
Dataset: TypeAlias = Any
"""tf.data.Dataset."""

# TensorFlow's protocol buffers
GraphDef: TypeAlias = Any
"""tf.compat.v1.GraphDef: a graph as a protocol buffer."""
MetaGraphDef: TypeAlias = Any
"""tf.compat.v1.MetaGraphDef: a graph with its collections as a protocol buffer."""
NodeDef: TypeAlias = Any
"""tf.compat.v1.NodeDef: one node of a GraphDef, or of the body of a function in it."""
AttrValue: TypeAlias = Any
"""tf.compat.v1.AttrValue: the value of an attribute of a NodeDef."""
NameAttrList: TypeAlias = Any
"""tf.compat.v1.NameAttrList: the function that an attribute names."""
FunctionDef: TypeAlias = Any
"""FunctionDef: a function of a GraphDef's library."""
FunctionLibrary: TypeAlias = Any
"""FunctionDefLibrary: all functions of a GraphDef."""
OpLibrary: TypeAlias = Any
"""The result of tf.load_op_library: a module with a function for each op of a library."""
OpDef: TypeAlias = Any
"""OpDef: the definition of an op type, with its inputs, outputs and attributes."""
TensorProto: TypeAlias = Any
"""tf.compat.v1.TensorProto: an array as a protocol buffer."""
QueueRunnerDef: TypeAlias = Any
"""tf.compat.v1.train.QueueRunner as a protocol buffer."""
BundleEntry: TypeAlias = Any
"""BundleEntryProto: a checkpoint index's entry about a tensor, or about a slice of one."""
StepStats: TypeAlias = Any
"""StepStats: a traced run's measurements of each op."""

# TensorFlow's sessions
Session: TypeAlias = Any
"""tf.compat.v1.Session, or a replacement."""
MonitoredSession: TypeAlias = Any
"""tf.compat.v1.train.MonitoredSession: a session with hooks."""
ConfigProto: TypeAlias = Any
"""tf.compat.v1.ConfigProto: the options of a session."""
RunOptions: TypeAlias = Any
"""tf.compat.v1.RunOptions: the options of a run."""
RunMetadata: TypeAlias = Any
"""tf.compat.v1.RunMetadata: a run's metadata."""
Fetch: TypeAlias = Any
"""A fetch or the key of a feed: a tensor (tf.IndexedSlices too), operation or variable, or the name of one."""
Fetches: TypeAlias = Any
"""The fetches of a run: one fetch, or lists, tuples and dicts of fetches."""
Value: TypeAlias = Any
"""A result or a feed of a run: a NumPy array or scalar, bytes, a value that NumPy converts to an array, a
SparseTensorValue and similar for composite tensors; None for an operation.
"""
FeedDict: TypeAlias = Mapping[Any, Any]
"""The feeds of a run, by tensors or their names."""
Hook: TypeAlias = Any
"""tf.estimator.SessionRunHook."""
RunArgs: TypeAlias = Any
"""tf.estimator.SessionRunArgs: a hook's fetches and feeds; None for none."""
RunContext: TypeAlias = Any
"""tf.estimator.SessionRunContext: a hook's argument before and after a run."""
RunValues: TypeAlias = Any
"""tf.estimator.SessionRunValues: a run's results for a hook."""
Scaffold: TypeAlias = Any
"""tf.compat.v1.train.Scaffold: the ops that a monitored session runs before the first step."""
Coordinator: TypeAlias = Any
"""tf.train.Coordinator."""
OpError: TypeAlias = Any
"""tf.errors.OpError: the error of a run, and its op."""

# Keras, both the third one and tf_keras
KerasModel: TypeAlias = Any
"""keras.Model."""
KerasOptimizer: TypeAlias = Any
"""keras.optimizers.Optimizer."""
KerasVariable: TypeAlias = Any
"""keras.Variable; in tf_keras, and where both are accepted, a tf.Variable."""
KerasCallback: TypeAlias = Any
"""keras.callbacks.Callback."""
KerasCallbackList: TypeAlias = Any
"""keras.callbacks.CallbackList: all callbacks of a call of `fit`, as one."""
KerasHistory: TypeAlias = Any
"""keras.callbacks.History: what `fit` returns."""
LearningRate: TypeAlias = Any
"""A learning rate: a number, a tensor or variable, or a schedule or function that returns one."""
Log: TypeAlias = Any
"""A value that a step of Keras logs: a tensor while it is traced, else a number or array; or a dict of these."""
Logs: TypeAlias = dict[str, Log]
"""The values that a step of Keras logs, by name."""

# MPI
Comm: TypeAlias = Any
"""mpi4py.MPI.Comm."""
MpiRequest: TypeAlias = Any
"""mpi4py.MPI.Request: a message in flight."""
MpiStatus: TypeAlias = Any
"""mpi4py.MPI.Status: of a message that has arrived."""
MpiDatatype: TypeAlias = Any
"""mpi4py.MPI.Datatype."""
