"""Replaces gradients with those that were derived again, and infers again the shapes of what reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import tensorflow as tf

from parallax.analysis.reading.construction.recorded_gradients import CapturedRecord
from parallax.analysis.reading.lowering.infer_shapes import drop_shapes
from parallax.base.types import Graph, GraphDef, NodeDef
from parallax.graph.batches import is_opened
from parallax.graph.view import GraphView, node_of, tensor_name

_SHAPES = "_output_shapes"
_LEADING = (3, 9, 21)  # types.proto: int32, int64, variant


def replace_gradients(
    opened: GraphDef,
    derived: GraphDef,
    instead: Mapping[str, tf.Tensor],
    autodiff: Set[str],
    inferred: Mapping[str, str],
) -> GraphDef:
    """A graph in which all consumers read new gradients instead of old ones, whose names the new ones take over.

    Nodes by which autodiff computed the old ones from the batch are removed. The rest stays, such as the dense shape of
    a gradient's rows, which a script may fetch.

    Args:
        opened: the graph; its nodes are modified.
        derived: a part of it with the new gradients; its nodes are modified.
        instead: old tensor -> new tensor of the graph behind `derived`.
        autodiff: the nodes that autodiff created for the old ones.
        inferred: old tensor -> the name of its stand-in, if there is one: it is removed.
    """
    changed = type(opened)(versions=opened.versions, library=derived.library)
    functions = {function.signature.name for function in derived.library.function}
    changed.library.function.extend(one for one in opened.library.function if one.signature.name not in functions)
    by_name = {node.name: node for node in opened.node}
    nodes = {node.name: node for node in derived.node}
    for name in by_name.keys() & nodes.keys():
        if "_class" in by_name[name].attr:
            nodes[name].attr["_class"].CopyFrom(by_name[name].attr["_class"])
    nodes |= {name: node for name, node in by_name.items() if name not in nodes}
    for old in instead:
        nodes.pop(inferred[old], None)
    _redirect_inputs(nodes, instead, autodiff, inferred)
    old_gradients = autodiff & _find_of_batch(nodes)
    delivered = {node_of(old) for old in instead} & autodiff & nodes.keys()
    read = {tensor_name(one) for name, node in nodes.items() if name not in autodiff for one in node.input}
    for name in delivered:
        count = len(nodes[name].attr[_SHAPES].list.shape) if _SHAPES in nodes[name].attr else 0
        old_outputs = [f"{name}:{number}" for number in range(count)]
        if count and all(old in instead or old not in read for old in old_outputs):
            any_new = next(instead[old] for old in old_outputs if old in instead)
            _become(nodes[name], [instead.get(old, any_new) for old in old_outputs])
    changed.node.extend(_drop_old_gradients(nodes, old_gradients, delivered))
    return changed


def _redirect_inputs(
    nodes: Mapping[str, NodeDef], instead: Mapping[str, tf.Tensor], autodiff: Set[str], inferred: Mapping[str, str]
) -> None:
    """Redirects the data and control inputs of all nodes but autodiff's to the new gradients."""
    names = {old: str(new.name) for old, new in instead.items()}
    new_by_input = {form: new for old, new in names.items() for name in (old, inferred[old]) for form in _forms(name)}
    waited = {node_of(old): node_of(new) for old, new in names.items()}
    for name, node in nodes.items():
        if name in autodiff:
            continue
        before = node.input[:]
        now = [new_by_input.get(one, one) for one in before]
        if before and before[-1][0] == "^":
            now = [one for one in now if one[0] != "^"]
            for one in (one[1:] for one in before if one[0] == "^"):
                # A node that waits for a call waits for a node that reads its results.
                results = nodes[one].input if one in autodiff and one not in waited else ()
                replaced = [waited[result] for tensor in results if (result := node_of(tensor)) in waited]
                now += [f"^{other}" for other in replaced or [waited.get(one, one)]]
        if now != before:
            node.input[:] = now


def _forms(name: str) -> tuple[str, str]:
    """The names by which a node may refer to an input tensor."""
    return tensor_name(name).removesuffix(":0"), tensor_name(name)


def _become(node: NodeDef, new_tensors: Sequence[tf.Tensor]) -> None:
    """Turns a node into copies of tensors, one for each of its outputs."""
    dtypes = [int(new.dtype.base_dtype.as_datatype_enum) for new in new_tensors]
    op = "Identity" if len(dtypes) == 1 else "IdentityN"
    node.CopyFrom(type(node)(name=node.name, op=op, input=[str(new.name) for new in new_tensors]))
    if op == "Identity":
        node.attr["T"].type = dtypes[0]
    else:
        node.attr["T"].list.type.extend(dtypes)
    for new in new_tensors:
        node.attr[_SHAPES].list.shape.add().CopyFrom(new.shape.as_proto())


def _find_of_batch(nodes: Mapping[str, NodeDef]) -> set[str]:
    """The nodes that are computed from the batch."""
    takers: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        for one in node.input:
            takers[node_of(one)].append(name)
    return _reach(takers, [name for name, node in nodes.items() if is_opened(node)])


def _drop_old_gradients(nodes: Mapping[str, NodeDef], old_gradients: Set[str], delivered: Set[str]) -> list[NodeDef]:
    """The nodes without those of old gradients on which nothing depends; delivered ones stay under their names."""
    needed = {name: [node_of(one) for one in node.input] for name, node in nodes.items()}
    needed_nodes = _reach(needed, (nodes.keys() - old_gradients) | (delivered & nodes.keys()))
    kept_nodes = [node for name, node in nodes.items() if name in needed_nodes]
    for node in kept_nodes:
        places = node.attr["_class"].list.s if "_class" in node.attr else ()
        if any(place.decode().removeprefix("loc:@") not in needed_nodes for place in places):
            del node.attr["_class"]
    return kept_nodes


def _reach(edges: Mapping[str, Sequence[str]], begin: Iterable[str]) -> set[str]:
    """Some nodes, and all nodes reachable from them."""
    reached = set(begin)
    waiting = list(reached)
    while waiting:
        for other in edges.get(waiting.pop(), ()):
            if other not in reached:
                reached.add(other)
                waiting.append(other)
    return reached


def find_copies(view: GraphView, gradient: str, autodiff: Set[str]) -> list[str]:
    """The tensors of autodiff of which a gradient is a copy, as a call's result is; rewritten updates read these."""
    copies: list[str] = []
    while view.op(node := node_of(gradient)) == "Identity" and node in autodiff:
        gradient = view.inputs(node)[0]
        copies.append(gradient)
    return [tensor for tensor in copies if node_of(tensor) in autodiff]


def redirect_consumers(graph: Graph, record: CapturedRecord, old: str, new: tf.Tensor) -> None:
    """Redirects all consumers of an old gradient, except autodiff itself, to the new one."""
    before = graph.get_tensor_by_name(old)
    for op in before.consumers():
        for slot, tensor_read in enumerate(op.inputs):
            if tensor_read is before and op.name not in record.ops:
                op._update_input(slot, new)


def infer_others(fixed: GraphView, view: GraphView, graph: Graph, outside: Set[str]) -> None:
    """Infers again the shapes of nodes outside a graph, where their inputs may have other shapes.

    Args:
        fixed: the graph for the fixed batch.
        view: the graph with an open batch; in it, nodes of `outside` have the shapes of `fixed`, and get their own.
        graph: the graph without `outside`; inferred nodes are added to it.
        outside: nodes.
    """
    changed: set[str] = set()
    reached: set[str] = set()
    for node in view.topological_order() if outside else ():
        if node not in outside or view.op(node) != fixed.op(node):
            continue
        for new, old in zip(view.inputs(node), fixed.inputs(node), strict=True):
            if new in changed or (node_of(new) not in outside and _is_another(fixed, view, new, old)):
                reached.add(node)
                changed.update(t for t in fixed.outputs(node) if fixed.shape(t) != () or fixed.dtype(t) in _LEADING)
                break
    part, others = type(view.graph_def)(), view.ancestors(reached) & outside
    for node in view.graph_def.node:
        if node.name in others:
            part.node.add().CopyFrom(node)
            part.node[-1].attr.pop("_class", None)
            del part.node[-1].input[len(view.inputs(node.name)) :]  # control inputs do not affect shapes
    drop_shapes(part.node)
    known = {tensor for node in others for tensor in view.inputs(node) if node_of(tensor) not in others}
    known_tensors = {name: graph.get_tensor_by_name(name) for name in known}
    with graph.as_default():  # a node with the name of a scope of the graph is renamed there
        imported = tf.graph_util.import_graph_def(part, known_tensors, list(reached), name="")
    for name, op in zip(reached, imported, strict=True):
        shapes = [output.get_shape().as_proto() for output in op.outputs]
        drop_shapes([view.nodes[name]])
        if shapes:
            view.nodes[name].attr["_output_shapes"].list.shape.extend(shapes)


def _is_another(fixed: GraphView, view: GraphView, new: str, old: str) -> bool:
    """Whether a tensor that gradients may depend on has another shape than before, or integers, possibly lengths."""
    return fixed.shape(old) != view.shape(new) or (view.op(node_of(new)) != "Const" and view.dtype(new) in _LEADING)
