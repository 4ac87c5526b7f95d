"""One graph of traced functions: it calls each function once, on the graph's own variables.

A step that was written for eager execution is, once traced, a function whose arguments include handles of variables.
The graph has a variable for each handle, which starts at zero; the code that opens a session assigns its value. A
variable whose initial value was traced (traced_values.py) starts at that value, so that owners compute their rows.
Capture inlines the calls like those of any `tf.function`, and the function's own graph records the gradients, so no
later stage depends on the origin of such a graph.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import attr_value_pb2

from parallax.base.errors import GraphError
from parallax.base.types import ConcreteFunction, Graph, Nest, Operation, Tensor, TensorShape, TypeSpec, Variable
from parallax.functions.tracing.lookup_tables import table_in_graph
from parallax.functions.tracing.traced_values import handle_of, initial_of
from parallax.graph.batches import (
    mark_batch,
    mark_elements,
    mark_full,
    mark_length,
    mark_numeric_length,
    mark_partial_sum,
    mark_row_ends,
    mark_run,
)
from parallax.graph.view import EXAMPLES
from parallax.report.logger import log

_LARGEST_CONSTANT_BYTES = 1 << 20
_UNKNOWN = (
    "{step} uses {what}, but a traced step may use only variables, arguments and constants from outside. {remedy}"
)
_OPEN_SHAPE = (
    "Variable {name!r} has the open shape {shape}, but a plan needs the size of every variable. Create it with a fixed "
    "shape, and count in another variable how many of its rows are in use."
)
_WRITER = "a summary writer of a tf.function that it calls"
_WRITE = "Return the value from that function, and write its summary in the step."
_MOVE = "Move that part to the input pipeline (tf.data's map), which runs before the step."


@dataclass(frozen=True, slots=True)
class StepVariable:
    """A variable of the script, and its name in a graph.

    Attributes:
        variable: the tf.Variable, created eagerly.
        name: the name of the graph's variable; must be unique.
        trainable: whether gradients with respect to it may be computed.
    """

    variable: Variable
    name: str
    trainable: bool


@dataclass(frozen=True, slots=True)
class GraphStep:
    """A traced function in a graph.

    Attributes:
        name: scope of its call.
        feeds: placeholders of its arguments, flat, as `tf.nest` flattens them.
        fetches: its results, in its own structure; None where it returns nothing.
        run: runs all of it, including its effects on variables.
        rows: the tensor that may be fed the number of this worker's examples, where that is not the length of the fed
            batch.
        length: the tensor that may be fed the length of the global batch, which is otherwise summed over the workers.
            Both are None where all workers have batches of one length.
        is_counted: whether the graph's global step counts its runs.
        whole: indices of its flat arguments whose length differs from the batch's, and which are passed in full.
    """

    name: str
    feeds: tuple[Tensor, ...]
    fetches: Nest
    run: Operation
    rows: Tensor | None = None
    length: Tensor | None = None
    is_counted: bool = False
    whole: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LoopVariables:
    """Variables of a graph that record the progress of the loop around its steps, for checkpoints.

    Attributes:
        step: int64, the number of steps run; the graph's global step.
        epoch: int64 [3]: an epoch, the step at which it began, and the number of its batches (-1 where that is
            unknown).
    """

    step: Variable
    epoch: Variable


@dataclass
class StepGraph:
    """A graph under construction, with the variables that its steps share.

    Attributes:
        graph: the tf.Graph.
        variables: the variables that steps may read, in order.
        made: name -> the graph's variable, for those that a step has read.
        loop: the progress of the loop that runs a step; None where no step was added with it.
        sums: the tf.Variables of which each worker has a part.
    """

    variables: Sequence[StepVariable]
    graph: Graph = field(default_factory=tf.Graph)
    made: dict[str, Variable] = field(default_factory=dict)
    loop: LoopVariables | None = None
    sums: Sequence[Variable] = ()

    def __post_init__(self) -> None:
        names = [one.name for one in self.variables]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise GraphError(f"Every variable of a step must have a unique name, but two are named {twice[0]!r}.")
        self._tables: dict[int, Tensor] = {}
        self._by_handle = {id(handle_of(one.variable)): one for one in self.variables}

    def add(
        self,
        name: str,
        concrete: ConcreteFunction,
        is_uneven: bool = False,
        examples: int | Sequence[int] = 0,
        full: int = 0,
        is_counted: bool = False,
        whole: frozenset[int] = frozenset(),
        has_length: bool = False,
    ) -> GraphStep:
        """Calls a traced function in the graph.

        Args:
            name: scope of its ops.
            concrete: a tf.types.experimental.ConcreteFunction.
            is_uneven: whether workers may call it with batches of unequal length, including empty ones; every argument
                with an open first dimension then counts as a batch.
            examples: the number of examples of a worker's batch, where its dimension is open: of all arguments, or of
                each, flat; for counting only, 0 if unknown.
            full: the usual length of the global batch; other lengths are slower. 0 if unknown.
            is_counted: whether the graph's global step counts its runs; true of at most one step.
            whole: indices of flat arguments that are not batches whatever their first dimension is.
            has_length: whether it may compute with a number for the length of the global batch, for which it may have
                been traced.

        Raises:
            GraphError: it captures an object that no graph can contain.
        """
        body = concrete.graph
        captured = [outer for outer, _ in body.captures]
        arguments = body.inputs[: len(body.inputs) - len(captured)]
        with self.graph.as_default(), self.graph.name_scope(f"{name}/"):
            opened = [n for n in range(len(arguments)) if has_length and n not in whole]
            shapes = [_open(one.shape) if n in opened else one.shape for n, one in enumerate(arguments)]
            pairs = zip(arguments, shapes, strict=True)
            feeds = tuple(tf.compat.v1.placeholder(one.dtype, shape, name=one.op.name) for one, shape in pairs)
            marked = _mark(feeds, name, concrete.structured_input_signature, full, whole) if is_uneven else None
            for number in opened:
                mark_numeric_length(feeds[number])
            lengths = [examples] * len(feeds) if isinstance(examples, int) else examples
            for number, (feed, length_of_feed) in enumerate(zip(feeds, lengths, strict=True)):
                if length_of_feed and number not in whole:
                    feed.op._set_attr(EXAMPLES, attr_value_pb2.AttrValue(i=length_of_feed))
            captured_inputs = [self._take(name, outer) for outer in captured]
            if is_counted:
                self.loop = _loop_variables()
            first = self.graph.version
            if self.loop is not None and is_counted:
                self.loop.step.assign_add(1, read_value=False)
            results = concrete._call_flat([*feeds], captured_inputs)
            run = tf.group(*self.graph.get_operations()[first:], name="run")
            mark_run(run, name)
            # Each result separately: the call's own name represents all of them, including those that depend on
            # gradients.
            results = tf.nest.map_structure(lambda one: None if one is None else tf.identity(one), results)
        if whole:
            names = ", ".join(feeds[number].op.name for number in sorted(whole))
            log.info(f"Every worker gets all of {names}, whose length differs from the length of the batch.")
        rows, length = marked or (None, None)
        return GraphStep(name, feeds, results, run, rows, length, is_counted, whole)

    def list_variables(self) -> tuple[StepVariable, ...]:
        """The variables that steps have read, in order."""
        return tuple(one for one in self.variables if one.name in self.made)

    def reset(self, names: Iterable[str]) -> Operation:
        """An op that resets those of the named variables that steps have read to zero."""
        with self.graph.as_default(), self.graph.name_scope("reset/"):
            made = [self.made[name] for name in names if name in self.made]
            return tf.group(*(variable.assign(tf.zeros_like(variable)).op for variable in made), name="run")

    def _take(self, step: str, outer: Tensor) -> Tensor:
        """The graph's replacement for a tensor that a function captures."""
        known = self._by_handle.get(id(outer))
        if known is not None:
            return self._variable(known).handle
        if outer.dtype in (tf.resource, tf.variant):
            if (table := self._table(step, outer)) is not None:
                return table
            if "SummaryWriter" in repr(outer):
                raise GraphError(_UNKNOWN.format(step=step, what=_WRITER, remedy=_WRITE))
            what = f"the {outer.dtype.name} {getattr(outer, 'name', outer)!r}: an iterator, a queue, a dataset"
            raise GraphError(_UNKNOWN.format(step=step, what=what, remedy=_MOVE))
        value = np.asarray(outer.numpy())
        if value.nbytes > _LARGEST_CONSTANT_BYTES:
            what = f"a constant of {value.nbytes} bytes, shape {list(value.shape)}"
            remedy = "Make it a variable, tf.Variable(value, trainable=False), or an argument."
            raise GraphError(_UNKNOWN.format(step=step, what=what, remedy=remedy))
        return tf.constant(value)

    def _table(self, step: str, outer: Tensor) -> Tensor | None:
        """The graph's lookup table in place of an eager one; None in place of any other resource."""
        if outer.dtype == tf.resource and id(outer) not in self._tables:
            with self.graph.as_default(), self.graph.name_scope(None):
                table = table_in_graph(step, outer)
            if table is not None:
                self._tables[id(outer)] = table
        return self._tables.get(id(outer))

    def _variable(self, one: StepVariable) -> Variable:
        """The graph's variable."""
        if one.name not in self.made:
            variable = one.variable
            if not variable.shape.is_fully_defined():
                raise GraphError(_OPEN_SHAPE.format(name=one.name, shape=variable.shape))
            with self.graph.as_default(), self.graph.name_scope(None):
                self.made[one.name] = tf.compat.v1.get_variable(
                    self._op_name(one.name),
                    shape=variable.shape,
                    dtype=variable.dtype,
                    trainable=one.trainable,
                    use_resource=True,
                    initializer=self._initializer(one),
                )
            if any(variable is one for one in self.sums):
                mark_partial_sum(self.made[one.name])
        return self.made[one.name]

    def _op_name(self, name: str) -> str:
        """An op name valid in TensorFlow, for a name that may have other characters."""
        made = re.sub(r"[^A-Za-z0-9_.\\/>-]", "_", name)
        made = made if re.match(r"[A-Za-z0-9.]", made) else f"v{made}"
        used_names = {variable.handle.op.name for variable in self.made.values()} | {one.name for one in self.variables}
        number, op_name = 0, made
        while op_name != name and op_name in used_names:
            number += 1
            op_name = f"{made}_{number}"
        return op_name

    def _initializer(self, one: StepVariable) -> Callable[..., Tensor]:
        """A function that returns a variable's initial value: zero (an empty text, False), or its traced one."""
        initial = initial_of(one.variable)
        return tf.compat.v1.zeros_initializer() if initial is None else partial(_import, initial)


def _open(shape: TensorShape) -> TensorShape:
    """The shape of a batch of any length."""
    return tf.TensorShape([None]).concatenate(shape[1:]) if shape.rank else shape


def unique_name(name: str, used_names: Collection[str]) -> str:
    """The name, or the name with a number where it is in use."""
    candidate, number = name, 0
    while candidate in used_names:
        number += 1
        candidate = f"{name}_{number}"
    return candidate


def _loop_variables() -> LoopVariables:
    keys, make = tf.compat.v1.GraphKeys, tf.compat.v1.get_variable
    options = dict(dtype=tf.int64, trainable=False, use_resource=True)
    with tf.compat.v1.get_default_graph().name_scope(None):
        counted = [keys.GLOBAL_VARIABLES, keys.GLOBAL_STEP]
        step = make("loop/step", initializer=np.int64(0), collections=counted, **options)
        return LoopVariables(step, make("loop/epoch", initializer=np.array([0, 0, -1], np.int64), **options))


def _mark(
    feeds: Sequence[Tensor], step: str, signature: Nest, full: int, whole: frozenset[int]
) -> tuple[Tensor, Tensor] | None:
    """Marks the batches of a step; returns the tensors (this worker's examples, those of all) if there are any."""
    open_feeds = [n for n, one in enumerate(feeds) if one.shape.rank and one.shape[0] is None and n not in whole]
    batches = [feeds[number] for number in open_feeds]
    for batch in batches:
        mark_batch(batch, step)
    for spec, parts in _parts_of(feeds, signature):
        if isinstance(spec, tf.RaggedTensorSpec):
            names = [one.op.name for one in (*parts[2:], parts[0])]
            for elements, ends, name in zip((*parts[2:], parts[0]), parts[1:], names, strict=True):
                mark_elements(elements, name)
                mark_row_ends(ends, name)
        elif full and parts and any(parts[0] is one for one in batches):
            mark_full(parts[0], full)
    if not batches:
        return None
    rows = tf.compat.v1.placeholder_with_default(_measure_local_batch(feeds, signature, batches), [], name="rows")
    length = tf.compat.v1.placeholder_with_default(rows, [], name="length")
    mark_length(length, step)
    return rows, length


def _measure_local_batch(feeds: Sequence[Tensor], signature: Nest, batches: Sequence[Tensor]) -> Tensor:
    """The length of the fed batch, int64: for a ragged tensor's parts, it follows from the row splits alone."""
    ends = []
    for spec, parts in _parts_of(feeds, signature):
        if isinstance(spec, tf.RaggedTensorSpec):
            ends.append(parts[1])
        elif parts and any(parts[0] is one for one in batches):
            return tf.raw_ops.Shape(input=parts[0], out_type=tf.int64)[0]
    return tf.raw_ops.Shape(input=ends[0], out_type=tf.int64)[0] - 1


def _parts_of(feeds: Sequence[Tensor], signature: Nest) -> Iterator[tuple[TypeSpec, list[Tensor]]]:
    """Each tensor argument of a step, and its feeds: for a ragged one values and row splits."""
    waiting = iter(feeds)
    for spec in [one for one in tf.nest.flatten(signature) if isinstance(one, tf.TypeSpec)]:
        yield spec, [next(waiting) for _ in tf.nest.flatten(spec, expand_composites=True)]


def _import(initial: ConcreteFunction, shape: TensorShape, **_: object) -> Tensor:
    """The value of a traced function in the default graph."""
    graph_def, value = initial.graph.as_graph_def(), initial.outputs[0].name
    return tf.graph_util.import_graph_def(graph_def, name="traced", return_elements=[value])[0]
