"""Names for types, above all for those of other packages that have none that a checker knows: TensorFlow's, MPI's.

To a type checker each of these is `Any`; to a reader it says what a value is.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes that are passed on as they are, however many."""
Graph: TypeAlias = Any
"""tf.Graph."""
GraphDef: TypeAlias = Any
"""tf.compat.v1.GraphDef: a graph as a protocol buffer."""
NodeDef: TypeAlias = Any
"""tf.compat.v1.NodeDef: one node of a GraphDef, or of the body of a function in it."""
Operation: TypeAlias = Any
"""tf.Operation: a node of a tf.Graph."""
Tensor: TypeAlias = Any
"""tf.Tensor of a graph."""
DType: TypeAlias = Any
"""tf.DType."""
TensorShape: TypeAlias = Any
"""tf.TensorShape: a static shape, which may be open."""
Session: TypeAlias = Any
"""tf.compat.v1.Session, or what stands in its place."""
RunContext: TypeAlias = Any
"""tf.estimator.SessionRunContext: what a hook is given before and after a run."""
RunValues: TypeAlias = Any
"""tf.estimator.SessionRunValues: what a run gave a hook."""
Coordinator: TypeAlias = Any
"""tf.train.Coordinator."""
Comm: TypeAlias = Any
"""mpi4py.MPI.Comm."""
