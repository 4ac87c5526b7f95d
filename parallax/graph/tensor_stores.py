"""Resolves handles to stacks and TensorArrays, which are written in one place of a graph and read in another."""

from __future__ import annotations

from collections.abc import Mapping

from parallax.graph.view import GraphView, node_of, once_per_view

_PASSES = ("Enter", "RefEnter", "Identity", "Switch", "Merge", "NextIteration", "Exit")
_GRADIENTS = ("TensorArrayGradV3", "TensorArrayGradWithShape")


def store_of(view: GraphView, handle: str) -> str:
    """The name of the stack or TensorArray behind a handle; that of a gradient derives from the forward one.

    Args:
        view: the graph.
        handle: the tensor. A handle may itself have been pushed onto a stack, as those of nested loops are.
    """
    return _follow(view, handle, _find_pushed(view))


def tensors_read(view: GraphView, node: str) -> list[str]:
    """The tensors from which a node computes: its inputs, and what was pushed onto the stack that it pops."""
    inputs = list(view.inputs(node))
    item = _find_pushed(view).get(store_of(view, inputs[0])) if view.op(node) == "StackPopV2" else None
    return inputs if item is None else [*inputs, item]


def _follow(view: GraphView, handle: str, pushed: Mapping[str, str]) -> str:
    node = node_of(handle)
    while True:
        op, inputs = view.op(node), view.inputs(node)
        if op in _PASSES:
            node = node_of(inputs[0])
        elif op == "StackPopV2" and (item := pushed.get(_follow(view, inputs[0], pushed))) is not None:
            node = node_of(item)
        elif op in _GRADIENTS:
            return f"{_follow(view, inputs[0], pushed)} {view.nodes[node].attr['source'].s.decode()}"
        else:
            return node


@once_per_view
def _find_pushed(view: GraphView) -> dict[str, str]:
    """Stack -> the tensor that is pushed onto it."""
    pushes = [view.inputs(node) for node in view.nodes if view.op(node) == "StackPushV2"]
    pushed: dict[str, str] = {}
    while True:  # the handle that a push reads may come from another stack
        more = {_follow(view, inputs[0], pushed): inputs[1] for inputs in pushes}
        if more.keys() == pushed.keys():
            return pushed
        pushed = more
