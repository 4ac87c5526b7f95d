"""Keras's report of a step: logs of the global batch, computed again from the sums of its metrics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2

from parallax.base.types import ConcreteFunction, GraphDef, Logs, Operation, Session, Tensor, Value, Variable


class LogsOfSums:
    """The logs of a traced step as functions of its metrics' variables.

    Attributes:
        others: log -> its tensor in the step, for logs that depend on other values.
    """

    def __init__(self, concrete: ConcreteFunction, logs: dict[str, Tensor], variables: Sequence[Variable]) -> None:
        """Extracts the part of a traced step that computes its logs.

        Args:
            concrete: the traced step.
            logs: log -> tensor of its graph.
            variables: the tf.Variables of metrics, whose values are passed in this order.
        """
        number_by_handle = {id(variable.handle): number for number, variable in enumerate(variables)}
        handles = {
            inner.op.name: number_by_handle[id(outer)]
            for outer, inner in concrete.graph.captures
            if id(outer) in number_by_handle
        }
        self.others: dict[str, Tensor] = {}
        pure, nodes, reads = [], {}, {}
        for name, tensor in logs.items():
            computation = _find_computing_ops(tensor, handles)
            if computation is None:
                self.others[name] = tensor
            else:
                pure.append(name)
                nodes.update({op.name: op for op in computation[0]})
                reads.update(computation[1])
        self._names = list(logs)
        self._pure = pure
        self._results = _no_metrics
        if pure:
            self._results = self._build(concrete, nodes, reads, [logs[n] for n in pure], variables)

    @staticmethod
    def _build(
        concrete: ConcreteFunction,
        nodes: Collection[str],
        reads: Mapping[str, int],
        results: Sequence[Tensor],
        variables: Sequence[Variable],
    ) -> Callable[..., Sequence[Value]]:
        """A function that computes the results from the variables' values."""
        whole = concrete.graph.as_graph_def()
        part = tf.compat.v1.GraphDef(versions=whole.versions, library=whole.library)
        part.node.extend(node for node in whole.node if node.name in nodes)
        for node in part.node:
            data_inputs = [name for name in node.input if not name.startswith("^")]
            del node.input[:]
            node.input.extend(data_inputs)
        graph = tf.Graph()
        with graph.as_default():
            placeholders = [tf.compat.v1.placeholder(v.dtype, v.shape) for v in variables]
            replaced = {name: placeholders[number] for name, number in reads.items()}
            direct = [replaced.get(t.name) for t in results]
            imported = tf.graph_util.import_graph_def(
                part,
                input_map={name: tensor for name, tensor in replaced.items() if _is_input_of(name, part)},
                return_elements=[t.name for t, known in zip(results, direct, strict=True) if known is None],
                name="",
            )
            waiting = iter(imported or [])
            outputs = [known if known is not None else next(waiting) for known in direct]
        options = config_pb2.CallableOptions(feed=[t.name for t in placeholders], fetch=[t.name for t in outputs])
        session: Session = tf.compat.v1.Session(graph=graph)
        called: Callable[..., Sequence[Value]] = session._make_callable_from_options(options)  # make_callable is slower
        return called

    def logs(self, sums: Sequence[Value], others: Logs) -> Logs:
        """The logs in their order, scalars or arrays.

        Args:
            sums: the values of the metrics' variables.
            others: values of the logs in `others`.
        """
        log_by_name = dict(zip(self._pure, self._results(*sums), strict=True)) | others
        return {name: log_by_name[name] for name in self._names}


def _no_metrics(*_: Value) -> Sequence[Value]:
    """The results of a step whose logs depend on no metric."""
    return ()


def is_of_metrics(tensor: Tensor, variables: Sequence[Variable]) -> bool:
    """Whether a tensor of a function that is being traced depends on metrics' variables alone."""
    handles = {id(variable.handle) for variable in variables}
    captured = {inner.op.name: 0 for outer, inner in tensor.graph.captures if id(outer) in handles}
    return _find_computing_ops(tensor, captured) is not None


def _is_input_of(name: str, part: GraphDef) -> bool:
    """Whether a tensor is an input of a graph's nodes."""
    short = name.removesuffix(":0")
    return any(short in (i, i.removesuffix(":0")) for node in part.node for i in node.input)


def _find_computing_ops(tensor: Tensor, handles: dict[str, int]) -> tuple[list[Operation], dict[str, int]] | None:
    """(the ops that compute a tensor from reads of metrics' variables, read -> variable); None where it needs more."""
    nodes, reads, waiting = [], {}, [tensor]
    seen = set()
    while waiting:
        one = waiting.pop()
        op = one.op
        if op.type == "ReadVariableOp" and op.inputs[0].op.name in handles:
            reads[one.name] = handles[op.inputs[0].op.name]
            continue
        if op.type == "Placeholder" or (op.inputs and any(t.dtype == tf.resource for t in op.inputs)):
            return None
        if op.name not in seen:
            seen.add(op.name)
            nodes.append(op)
            waiting += list(op.inputs)
    return nodes, reads
