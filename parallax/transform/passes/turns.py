"""Pass: places gates before all ops with state, at which overlapping runs are serialized (parallax/native/turns.cc).

A gate precedes every op that reads the handle of a variable, a table or an iterator, and ops with internal state:
random ops, exchanges, all-reduces. Its key is the same for all ops that share the state. In a run by itself, whose
number is 0, gates do not wait. A node inside a TensorFlow 1 loop cannot wait for one outside; its handle has come
through the loop's entry, which does. Runs that contain an op with state but without a gate do not overlap
(`find_ungated`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import partial
from typing import Any

import tensorflow as tf

from parallax.base.types import GraphDef, NodeDef
from parallax.graph.control_flow import branches_of
from parallax.graph.ops import op_definition
from parallax.graph.view import GraphView, node_of
from parallax.transform.building.all_to_all import native_ops

GATE = "ParallaxGate"
SCOPE = "parallax/turn"
RUN_NUMBER = f"{SCOPE}/run:0"
"""The tensor to which a run that overlaps with others feeds its number."""
_ODD = re.compile(r"[^A-Za-z0-9_./-]")
_PASS_ON = frozenset({"Identity", "IdentityN", "Enter", "Switch", "Merge", "Exit", "NextIteration"})
_RESOURCE = tf.resource.as_datatype_enum
_KEEPS_NOTHING = frozenset({"Assert", "ParallaxAnnounce", "ParallaxLeave", "ParallaxDeliver", "ParallaxCollect", GATE})
"""Ops that are stateful, so that TensorFlow neither folds nor merges them, but have no state."""


def add_gates(graph_def: GraphDef) -> None:
    """Adds gates to a worker's graph, which is modified."""
    view = GraphView(graph_def)
    waits = keys_of(view)
    if not waits:
        return
    native_ops()  # registers the ops, so that graphs with gates can be read
    _add_run_number(graph_def)
    gates: dict[str, str] = {}
    for name, keys in waits.items():
        for key in keys:
            if key not in gates:
                gates[key] = _gate_name(key)
                gate = graph_def.node.add(op=GATE, name=gates[key], input=[RUN_NUMBER.removesuffix(":0")])
                gate.attr["key"].s = key.encode()
            view.nodes[name].input.append(f"^{gates[key]}")


def keys_of(view: GraphView) -> dict[str, list[str]]:
    """For each node at which runs are serialized, the state that it uses."""
    branches = branches_of(view)
    keys_by_node: dict[str, list[str]] = {}
    for node in view.graph_def.node:
        loops = sum(branch.is_loop for branch in branches.get(node.name, ()))
        in_loop = loops > (node.op in ("Enter", "RefEnter"))  # a loop's entry waits outside of it
        keys = [] if in_loop else _keys(view, node)
        if keys:
            keys_by_node[node.name] = keys
    return keys_by_node


def find_ungated(view: GraphView, nodes: Iterable[str]) -> str | None:
    """One of some nodes that has state but no gate before it; None where all have one."""
    for name in nodes:
        definition = op_definition(view.op(name))
        if any(argument.is_ref for argument in (definition.output_arg if definition else ())):
            return name  # a reference variable, or an op that writes one
        has_gate = any(view.op(control) == GATE for control in view.controls(name))
        takes_handle = any(_handle_key(view, tensor) is not None for tensor in view.inputs(name))
        if not has_gate and (takes_handle or _keeps_state(view.nodes[name])):
            return name
        if view.op(name).startswith("IteratorGetNext") and any(map(partial(_reads_variables, view), view.nodes)):
            return name  # its dataset reads variables whenever it produces an element
    return None


def _reads_variables(view: GraphView, node: str) -> bool:
    """Whether a dataset's functions have variables as arguments."""
    handles = [tensor for tensor in view.inputs(node) if _handle_key(view, tensor) is not None]
    is_dataset = "Dataset" in view.op(node) and "output_types" in view.nodes[node].attr
    return is_dataset and any(view.op(node_of(tensor)) == "VarHandleOp" for tensor in handles)


def passes_on(node: NodeDef) -> bool:
    """Whether an op that reads a handle passes one on, through which other ops use the state."""
    if node.op in _PASS_ON:
        return True
    definition = op_definition(node.op)
    return definition is None or any(_RESOURCE in _types(node, argument) for argument in definition.output_arg)


def _keys(view: GraphView, node: NodeDef) -> list[str]:
    """The states that the gates before a node protect."""
    keys = [key for tensor in view.inputs(node.name) if (key := _handle_key(view, tensor)) is not None]
    if _keeps_state(node):
        keys.append(node.name)
    return list(dict.fromkeys(keys))


def _keeps_state(node: NodeDef) -> bool:
    """Whether a node has state that is not behind a handle, as far as its type shows."""
    if node.op in _KEEPS_NOTHING or _makes_handle(node):
        return False
    if node.op.startswith("Horovod"):  # two of one name at the same time are an error
        return True
    definition = op_definition(node.op)
    if definition is None:
        return True  # a function by its own name
    takes_handle = any(_RESOURCE in _types(node, argument) for argument in definition.input_arg)
    calls = any(value.HasField("func") or value.list.func for value in node.attr.values())
    return bool(definition.is_stateful) and (calls or not takes_handle)


def _types(node: NodeDef, argument: Any) -> tuple[int, ...]:
    """The types of the tensors of an op's input or output."""
    if argument.type_list_attr:
        return tuple(node.attr[argument.type_list_attr].list.type)
    return (argument.type or node.attr[argument.type_attr].type,)


def _handle_key(view: GraphView, tensor: str) -> str | None:
    """The key of the resource behind a handle; None for other tensors, and for handles that a node was passed."""
    node = view.nodes.get(node_of(tensor))
    if node is None or not _makes_handle(node):
        return None
    shared = node.attr["shared_name"].s.decode() if "shared_name" in node.attr else ""
    return shared or str(node.name)


def _makes_handle(node: NodeDef) -> bool:
    definition = op_definition(node.op)
    if definition is None or not definition.is_stateful or definition.input_arg:
        return False
    return any(argument.type == _RESOURCE for argument in definition.output_arg)


def _gate_name(key: str) -> str:
    plain = _ODD.sub("_", key)
    return f"{SCOPE}/{plain}" if plain == key else f"{SCOPE}/{plain}_{hashlib.sha256(key.encode()).hexdigest()[:8]}"


def _add_run_number(graph_def: GraphDef) -> None:
    alone = graph_def.node.add(op="Const", name=f"{SCOPE}/alone")
    alone.attr["dtype"].type = tf.int64.as_datatype_enum
    alone.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, tf.int64))
    run = graph_def.node.add(op="PlaceholderWithDefault", name=RUN_NUMBER.removesuffix(":0"), input=[alone.name])
    run.attr["dtype"].type = tf.int64.as_datatype_enum
    run.attr["shape"].shape.CopyFrom(tf.TensorShape([]).as_proto())
