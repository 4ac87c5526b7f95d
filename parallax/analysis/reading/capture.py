"""Captures a tf.Graph: its nodes with shapes, its variables, and the gradients that autodiff delivered.

The capture stores names, integers and protos only; the user's graph is neither changed nor referenced.

Function calls are inlined; a call keeps its name. A variable that was built with an open shape gets the shape of its
initial value. Where that shape is open too, the variable is left out of every byte count, and every worker stores all
of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import tensorflow as tf

from parallax.analysis.reading.batch_norm import with_plain_normalizations
from parallax.analysis.reading.batches.find_open_batches import mark_open_batches
from parallax.analysis.reading.batches.open_fixed_batch import OpenedGraph, open_fixed_batch
from parallax.analysis.reading.batches.unstated_shapes import (
    list_unstated_placeholders,
    state_fixed_lengths,
    state_shapes,
)
from parallax.analysis.reading.construction.custom_gradients import find_defined_gradient
from parallax.analysis.reading.construction.digests import fingerprint
from parallax.analysis.reading.construction.launcher_graph import export_graph
from parallax.analysis.reading.construction.measured_tensors import measured_in
from parallax.analysis.reading.construction.old_contexts import read_contexts
from parallax.analysis.reading.construction.recorded_gradients import (
    CapturedRecord,
    HiddenGradient,
    losses_of,
    records_in,
)
from parallax.analysis.reading.element_parts import with_element_parts
from parallax.analysis.reading.lazy.row_sums import with_rows_added_once
from parallax.analysis.reading.lazy.updates import LazyTable, lazy_updates
from parallax.analysis.reading.list_shapes import open_list_shapes
from parallax.analysis.reading.lowering.functional_control_flow import (
    conditional_of,
    connect_optionals,
    has_control_flow,
    lower_control_flow,
)
from parallax.analysis.reading.lowering.infer_shapes import infer_shapes, with_stated_shapes
from parallax.analysis.reading.lowering.inline import InlinedCall, inline_calls
from parallax.analysis.reading.row_reads import take_rows_of_variables
from parallax.base.errors import GraphError
from parallax.base.types import Graph, GraphDef, NodeDef, Variable
from parallax.graph.batches import is_of_front_end, is_of_script
from parallax.graph.garbage import without_collections
from parallax.graph.row_updates import row_update_ops
from parallax.graph.spec import OPEN_SHAPE, Part
from parallax.graph.view import VARIABLES, GraphView, Shape, node_of

_DEFINED = "the function called by {!r} defines its own gradient, which is not derived again for another batch size"
_HIDDEN = "gradients are taken inside a loop or a conditional"
_FOLLOWED = (
    "Config(layouts=False) is only for graphs that a script builds. For Keras and parallax.function, Parallax knows "
    "the batch, and N workers always compute what one process computes. Remove layouts."
)
_MAX_DEPTH = 50
_PASSES = ("Identity", "ReadVariableOp", "Switch", "RefSwitch", "Enter", "RefEnter", "Merge", "RefMerge", "RefIdentity")
"""Ops that pass on a variable, or its value; for a Merge the first input is followed."""


@dataclass(frozen=True, slots=True)
class CapturedVariable:
    """A TensorFlow variable as found in the graph.

    Attributes:
        logical_name: the user's name; the parts of a partitioned variable share it.
        whole_shape: shape of the logical variable.
        part: this variable's op, shape and first row.
        dtype: TensorFlow's name of the element type.
        dtype_bytes: bytes an element.
        trainable: whether it is in the collection of trainable variables.
        initializer: the op that assigns the initial value, if known.
        is_open: whether it was built with an open shape; its shape is then that of its initial value, or OPEN_SHAPE.
        is_local: whether it is declared local to a process, like a metric's count.
    """

    logical_name: str
    whole_shape: tuple[int, ...]
    part: Part
    dtype: str
    dtype_bytes: int
    trainable: bool
    initializer: str
    is_open: bool = False
    is_local: bool = False


@dataclass(frozen=True, slots=True)
class CapturedGraph:
    """A graph as captured.

    Attributes:
        view: index over the nodes, calls inlined, shapes inferred.
        fingerprint: SHA-256 over the structure of nodes and functions as the user built them.
        variables: by op name.
        records: the records of autodiff, in the names of the view.
        hidden: gradients that autodiff delivered in bodies of loops and conditionals, which are not inlined.
        lazy: the tables whose updates change more rows than a gradient has, if requested.
        by_row: whether that was requested.
        by_layouts: whether losses are analysed by the layouts of tensors (analysis/layouts); for a script's graph False
            where its batch is undecidable.
        synchronous: whether every step uses the gradients of all workers; else a worker trains on its own batches, and
            no batch is marked.
        means: why each worker's loss is taken to be a mean over its batch; empty where losses are analysed by layouts.
        fixed: the graph with the fixed batch that it was built for, where that was opened (open_fixed_batch.py).
        sums: table -> the number of functions of its gradient rows that are summed, if several.
        gradients: tensor of an opened graph that autodiff delivered -> that of the script's graph.
        replaced: nodes that autodiff created for the fixed batch; the remaining ones train nothing.
        remembered: cached decisions on this graph with these variables and records, by request.
    """

    view: GraphView
    fingerprint: str
    variables: dict[str, CapturedVariable]
    records: tuple[CapturedRecord, ...]
    hidden: tuple[HiddenGradient, ...] = ()
    lazy: tuple[LazyTable, ...] = ()
    by_row: bool = False
    by_layouts: bool = True
    synchronous: bool = True
    fixed: GraphView | None = None
    means: str = ""
    sums: Mapping[str, int] = field(default_factory=dict)
    gradients: Mapping[str, str] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()
    remembered: dict[Any, Any] = field(init=False, default_factory=dict, repr=False, compare=False)

    @property
    def is_opened(self) -> bool:
        """Whether it was built for a fixed batch, which was opened."""
        return self.fixed is not None

    @property
    def note_of_means(self) -> str:
        """The plan's note where losses are not analysed by layouts, a clause; empty where they are."""
        note = "each worker's loss is assumed to be a mean over its batch, so gradients are averaged"
        return f"{note}: {self.means}" if self.means else ""

    def gradient_of_script(self, tensor: str) -> str:
        """A tensor that autodiff delivered, by its name in the user's graph."""
        return self.gradients.get(tensor, tensor)

    def planned_shape(self, tensor: str) -> Shape:
        """The shape of a tensor on a worker, as far as the user's graph determines it."""
        is_forward = self.fixed is not None and node_of(tensor) in self.fixed.nodes
        return self.fixed.shape(tensor) if self.fixed is not None and is_forward else self.view.shape(tensor)


@without_collections
def capture(
    graph: Graph,
    digest: str | None = None,
    by_row: bool = False,
    by_layouts: bool | None = None,
    synchronous: bool = True,
    means: str = "Config(layouts=False) is set",
    lowers_all: bool | None = None,
    states_lengths: bool = True,
) -> CapturedGraph:
    """Captures a TF1-style graph, whether built or imported, before or after Parallax was imported.

    Args:
        graph: a tf.Graph.
        digest: its fingerprint, if known.
        by_row: whether updates of whole tables are converted to row-wise ones, where they are proven equal.
        by_layouts: whether losses are analysed by the layouts of tensors; None: where possible.
        synchronous: whether every step uses the gradients of all workers.
        means: why losses are taken to be means over each worker's batch, where they are not analysed by layouts.
        lowers_all: whether conditionals and loops are lowered; None: where losses are analysed by layouts.
        states_lengths: whether placeholders with an open batch may have a fixed length that the graph shows.

    Raises:
        GraphError: the graph of a front end is not to be analysed by layouts.
    """
    has_front_end = is_of_front_end(graph)
    if by_layouts is False and has_front_end:
        raise GraphError(_FOLLOWED)
    requested = by_layouts
    if by_layouts is None and (has_front_end or not synchronous):
        by_layouts = True
    graph_def = export_graph(graph)
    digest = fingerprint(graph_def) if digest is None else digest
    inlined, calls = _flat(graph_def, (synchronous and has_front_end) if lowers_all is None else lowers_all)
    inlined = take_rows_of_variables(inlined)
    has_layouts = synchronous and by_layouts is not False
    inlined = open_list_shapes(inlined) if has_front_end and synchronous else inlined
    plain, expanded = with_plain_normalizations(inlined) if has_layouts else (inlined, {})
    has_plain, inlined = plain is not inlined, plain
    names = [op.name for op in graph.get_operations()]
    view = GraphView(graph_def if inlined is graph_def else infer_shapes(inlined))
    is_open = {name for name, node in view.nodes.items() if node.op in VARIABLES and _shape_of(node) is None}
    view = _with_initial_shapes(graph, view, is_open) if is_open else view
    if synchronous and by_layouts is not False:
        view = _with_placeholders_shapes(view if has_front_end else with_element_parts(view))
    added, sums = with_rows_added_once(view.graph_def, view)
    view = view if added is view.graph_def else GraphView(added)
    lazy: tuple[LazyTable, ...] = ()
    if by_row:
        rewritten, lazy = lazy_updates(view.graph_def, view)
        if rewritten is not view.graph_def:
            row_update_ops()  # the graph contains one of them
            view = GraphView(rewritten)
    records, hidden = records_in(graph, names, calls, view, expanded)
    variables = _variables(graph, view, is_open)
    fixed: GraphView | None = None
    gradients: Mapping[str, str] = {}
    replaced = frozenset[str]()
    if synchronous and by_layouts is not False and is_of_script(view):
        before, initial = view, view.ancestors(v.initializer for v in variables.values() if v.initializer)
        if states_lengths:
            view = state_fixed_lengths(view, view.ancestors(losses_of(records)) - initial)
        by_layouts = _mark_batches(view, initial, records)
        if by_layouts and lowers_all is None and has_control_flow(view.graph_def):
            return capture(graph, digest, by_row, requested, lowers_all=True, states_lengths=states_lengths)
        opened: OpenedGraph | str = _HIDDEN
        if not by_layouts and not hidden:
            defined = find_defined_gradient(graph, calls)
            opened = _DEFINED.format(defined) if defined else ""
            opened = opened or open_fixed_batch(view, records, initial, read_contexts(graph), measured_in(graph))
        if view is not before and not isinstance(opened, OpenedGraph):
            return capture(graph, digest, by_row, requested, lowers_all=lowers_all, states_lengths=False)
        if isinstance(opened, OpenedGraph):
            fixed, gradients, replaced = view, opened.gradients, replaced.union(*(record.ops for record in records))
            view, records = _lower_control_flow(opened.view, opened.records)
            has_plain = has_plain or view is not opened.view
            by_layouts = _mark_batches(view, initial, records)
        means = opened if isinstance(opened, str) else means
        if requested is None and not by_layouts and has_plain:
            return capture(graph, digest, by_row, by_layouts=False, means=means)
    return CapturedGraph(
        view=view,
        fingerprint=digest,
        variables=variables,
        records=records,
        hidden=hidden,
        lazy=lazy,
        by_row=by_row,
        by_layouts=bool(by_layouts),
        synchronous=synchronous,
        fixed=fixed,
        means=means if by_layouts is False else "",
        sums=sums,
        gradients=gradients,
        replaced=replaced,
    )


def _mark_batches(view: GraphView, initial: Set[str], records: tuple[CapturedRecord, ...]) -> bool:
    autodiff = frozenset[str]().union(*(record.ops for record in records))
    return mark_open_batches(view, initial, losses_of(records), autodiff)


def _flat(graph_def: GraphDef, lowers_all: bool) -> tuple[GraphDef, tuple[InlinedCall, ...]]:
    """The graph without calls, and without all conditionals and loops, or those that write variables; and the calls."""
    calls: list[InlinedCall] = []
    for _ in range(_MAX_DEPTH):
        inlined, more = inline_calls(graph_def)
        calls += more
        flat = lower_control_flow(inlined, lowers_all)
        if flat is graph_def:
            break
        graph_def = flat
    return connect_optionals(graph_def) if lowers_all else graph_def, tuple(calls)


def _lower_control_flow(
    view: GraphView, records: tuple[CapturedRecord, ...]
) -> tuple[GraphView, tuple[CapturedRecord, ...]]:
    """A graph without conditionals, loops and fused normalizations; the contents of autodiff's belong to autodiff."""
    if not has_control_flow(view.graph_def):
        return view, records
    plain, _ = with_plain_normalizations(_flat(view.graph_def, lowers_all=True)[0])
    lowered = GraphView(infer_shapes(plain))
    added = lowered.nodes.keys() - view.nodes.keys()
    of_autodiff = [record.ops | {node for node in added if conditional_of(node) in record.ops} for record in records]
    return lowered, tuple(replace(record, ops=ops) for record, ops in zip(records, of_autodiff, strict=True))


def _with_placeholders_shapes(view: GraphView) -> GraphView:
    """The graph with the shapes of placeholders that the script has created without one, where ops decide them."""
    if not list_unstated_placeholders(view):
        return view
    has_branches = has_control_flow(view.graph_def)
    return state_shapes(view, GraphView(infer_shapes(_flat(view.graph_def, True)[0])) if has_branches else view)


def _with_initial_shapes(graph: Graph, view: GraphView, is_open: set[str]) -> GraphView:
    """The graph with the shapes of initial values for variables built without one, where those are known."""
    declared = _find_declared(graph)
    known = {}
    for name in sorted(is_open):
        initializer = _initializer(declared.get(name), name, view)
        shape = view.shape(view.inputs(initializer)[1]) if initializer and len(view.inputs(initializer)) > 1 else None
        if shape is not None and None not in shape:
            known[name] = shape
    return with_stated_shapes(view, known) if known else view


def _shape_of(node: NodeDef) -> tuple[int, ...] | None:
    """The static shape of a variable; None where it is open."""
    shape = node.attr["shape"].shape
    if shape.unknown_rank or any(dim.size < 0 for dim in shape.dim):
        return None
    return tuple(int(dim.size) for dim in shape.dim)


def _find_declared(graph: Graph) -> dict[str, Variable]:
    """The variables of a graph's collections, by op."""
    keys, declared = tf.compat.v1.GraphKeys, {}
    for key in (keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES, keys.TRAINABLE_VARIABLES):
        declared.update({_op_name(v): v for v in graph.get_collection(key)})
    return declared


def _variables(graph: Graph, view: GraphView, is_open: set[str]) -> dict[str, CapturedVariable]:
    trainable = {_op_name(v) for v in graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)}
    local = {_op_name(v) for v in graph.get_collection(tf.compat.v1.GraphKeys.LOCAL_VARIABLES)}
    declared, variables = _find_declared(graph), {}
    for name, node in view.nodes.items():
        if node.op not in VARIABLES:
            continue
        dtype = tf.dtypes.as_dtype(node.attr["dtype"].type)
        own_shape = _shape_of(node)
        own_shape = OPEN_SHAPE if own_shape is None else own_shape
        logical, whole, offset = _slice_of(declared.get(name), name, own_shape)
        variables[name] = CapturedVariable(
            logical_name=logical,
            whole_shape=whole,
            part=Part(name, own_shape, offset),
            dtype=str(dtype.name),
            dtype_bytes=int(dtype.size),
            trainable=name in trainable,
            initializer=_initializer(declared.get(name), name, view),
            is_open=name in is_open,
            is_local=name in local,
        )
    return variables


def _op_name(variable: Variable) -> str:
    handle = getattr(variable, "handle", None)
    return str(handle.op.name if handle is not None else variable.op.name)


def _slice_of(variable: Variable, name: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...], int]:
    """(logical name, full shape, first row); a part of a partitioned variable stores its origin.

    Parts split along a dimension other than the rows remain separate variables.
    """
    info = getattr(variable, "_save_slice_info", None)
    if info is None or any(info.var_offset[1:]) or list(info.full_shape[1:]) != list(shape[1:]):
        return name, shape, 0
    return str(info.full_name), tuple(int(d) for d in info.full_shape), int(info.var_offset[0])


def _initializer(variable: Variable, name: str, view: GraphView) -> str:
    initializer = getattr(variable, "initializer", None)
    if initializer is not None:
        return str(initializer.name)
    for edge in view.consumers(f"{name}:0"):
        if edge.node == f"{name}/Assign":
            return edge.node
    return ""


def initialization_phases(captured: CapturedGraph) -> list[list[str]]:
    """The initializer ops, in phases to be run one after the other.

    Some initial values are read from other variables (a moving average starts at its variable's value). TensorFlow runs
    all initializers at once and lets such reads race; in phases, each read follows its write.
    """
    reads = {}
    for name, variable in captured.variables.items():
        if variable.initializer:
            needed = captured.view.ancestors([variable.initializer]) & captured.variables.keys()
            reads[name] = needed - {name}
    phases: list[list[str]] = []
    done: set[str] = set()
    while reads:
        ready = sorted(n for n, needed in reads.items() if not (needed - done) & reads.keys()) or sorted(reads)
        phases.append([captured.variables[n].initializer for n in ready])
        done.update(ready)
        reads = {n: needed for n, needed in reads.items() if n not in done}
    return phases


def variable_of_tensor(view: GraphView, variables: dict[str, CapturedVariable], tensor: str) -> str:
    """The variable op behind a handle, reference or read; empty for other tensors."""
    node = node_of(tensor)
    while node not in variables and view.op(node) in _PASSES and view.inputs(node):
        node = node_of(view.inputs(node)[0])
    return node if node in variables else ""
