"""Type aliases, above all for types of packages without annotations: TensorFlow's, MPI's.

To a type checker most of these are `Any`; to a reader each describes a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are passed on as they are, however many."""
Array: TypeAlias = "npt.NDArray[Any]"
"""A NumPy array, of whatever element type and shape."""
ArrayOnWorker0: TypeAlias = Any
"""A NumPy array or scalar on worker 0, None elsewhere."""
PortableValue: TypeAlias = Any
"""A variable's value for another process: a NumPy array or scalar, or an `InFile` where it is in a checkpoint."""
JsonObject: TypeAlias = dict[str, Any]
"""An object of JSON: numbers, texts, lists and further objects by name."""
Argument: TypeAlias = Any
"""What a script gives a function by position or by name, and what is only passed on or looked up by name."""
Picklable: TypeAlias = Any
"""A Python value that can be pickled, as what mpi4py sends."""
RandomStates: TypeAlias = tuple[Any, Any, Any]
"""Where random numbers stand: the states of Python's generator, NumPy's and TensorFlow's."""

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
"""tf.Tensor: of a graph, or with its value where TensorFlow executes eagerly."""
TensorLike: TypeAlias = Any
"""What TensorFlow makes tensors of: tf.Tensor, ragged and sparse ones, NumPy arrays, numbers."""
GradientTape: TypeAlias = Any
"""tf.GradientTape."""
Gradient: TypeAlias = Any
"""What autodiff gives for a variable or tensor: tf.Tensor, tf.IndexedSlices, or None where there is none."""
Variable: TypeAlias = Any
"""tf.Variable, of a resource or a reference."""
Handle: TypeAlias = Any
"""tf.Tensor that stands for a variable: the handle of its resource, or its reference."""
DType: TypeAlias = Any
"""tf.DType."""
TensorShape: TypeAlias = Any
"""tf.TensorShape, or what makes one: a static shape, which may be open."""
TypeSpec: TypeAlias = Any
"""tf.TypeSpec: what is known of a tensor before it is there."""
SparseTensor: TypeAlias = Any
"""tf.SparseTensor: places, values and shape."""
RaggedTensor: TypeAlias = Any
"""tf.RaggedTensor, with its value."""
Nest: TypeAlias = Any
"""A structure of lists, tuples and dicts, as `tf.nest` takes it; also a single leaf."""
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
"""tf.compat.v1.NameAttrList: how an attribute names a function."""
FunctionDef: TypeAlias = Any
"""FunctionDef: a function of a GraphDef's library."""
FunctionLibrary: TypeAlias = Any
"""FunctionDefLibrary: all functions of a GraphDef."""
OpLibrary: TypeAlias = Any
"""What tf.load_op_library gives: a module with a function for each op of a library."""
OpDef: TypeAlias = Any
"""OpDef: the definition of an op type, with its inputs, outputs and attributes."""
TensorProto: TypeAlias = Any
"""tf.compat.v1.TensorProto: an array as a protocol buffer."""
QueueRunnerDef: TypeAlias = Any
"""tf.compat.v1.train.QueueRunner as a protocol buffer."""
BundleEntry: TypeAlias = Any
"""BundleEntryProto: what the index of a checkpoint says of a tensor, or of a slice of one."""
StepStats: TypeAlias = Any
"""StepStats: what a traced run has measured of each op."""

# TensorFlow's sessions
Session: TypeAlias = Any
"""tf.compat.v1.Session, or what stands in its place."""
MonitoredSession: TypeAlias = Any
"""tf.compat.v1.train.MonitoredSession: a session with hooks."""
ConfigProto: TypeAlias = Any
"""tf.compat.v1.ConfigProto: the options of a session."""
RunOptions: TypeAlias = Any
"""tf.compat.v1.RunOptions: the options of a run."""
RunMetadata: TypeAlias = Any
"""tf.compat.v1.RunMetadata: what a run tells besides its values."""
Fetch: TypeAlias = Any
"""What a run can be asked for or fed: a tensor (tf.IndexedSlices too), operation or variable, or the name of one."""
Fetches: TypeAlias = Any
"""What a run is asked for: one fetch, or lists, tuples and dicts of fetches."""
Value: TypeAlias = Any
"""What a run gives or is fed: a NumPy array or scalar, bytes, what NumPy makes an array of, a SparseTensorValue and the
like for tensors of several parts; None for an operation."""
FeedDict: TypeAlias = Mapping[Any, Any]
"""What a run is fed, by tensors or their names."""
Hook: TypeAlias = Any
"""tf.estimator.SessionRunHook."""
RunArgs: TypeAlias = Any
"""tf.estimator.SessionRunArgs: what a hook asks of a run; None for nothing."""
RunContext: TypeAlias = Any
"""tf.estimator.SessionRunContext: what a hook is given before and after a run."""
RunValues: TypeAlias = Any
"""tf.estimator.SessionRunValues: what a run gave a hook."""
Scaffold: TypeAlias = Any
"""tf.compat.v1.train.Scaffold: what a monitored session runs before the first step."""
Coordinator: TypeAlias = Any
"""tf.train.Coordinator."""
OpError: TypeAlias = Any
"""tf.errors.OpError: what went wrong in a run, and in which op."""

# Keras, both the third one and tf_keras
KerasModel: TypeAlias = Any
"""keras.Model."""
KerasOptimizer: TypeAlias = Any
"""keras.optimizers.Optimizer."""
KerasVariable: TypeAlias = Any
"""keras.Variable; in tf_keras, and where either is taken, a tf.Variable."""
KerasCallback: TypeAlias = Any
"""keras.callbacks.Callback."""
KerasCallbackList: TypeAlias = Any
"""keras.callbacks.CallbackList: all callbacks of a call of `fit`, as one."""
KerasHistory: TypeAlias = Any
"""keras.callbacks.History: what `fit` returns."""
LearningRate: TypeAlias = Any
"""A learning rate: a number, a tensor or variable of one, or a schedule or function that gives one."""
Log: TypeAlias = Any
"""What a step of Keras logs under a name: a tensor where it is traced, else a number or array; or a dict of such."""
Logs: TypeAlias = dict[str, Log]
"""What a step of Keras logs, by name."""

# MPI
Comm: TypeAlias = Any
"""mpi4py.MPI.Comm."""
MpiRequest: TypeAlias = Any
"""mpi4py.MPI.Request: a message that is on its way."""
MpiDatatype: TypeAlias = Any
"""mpi4py.MPI.Datatype."""
