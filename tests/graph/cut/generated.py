"""Random graphs with a forward and a backward pass, and what stages of them do, without TensorFlow."""

import random

from parallax.graph.cut.graph_to_cut import GraphToCut
from parallax.graph.view import node_of


def tensors_of(names, draw, most):
    return tuple(f"{name}:0" for name in draw.sample(names, min(len(names), draw.randint(1, most))))


def generate(seed):
    """(graph, its forward nodes in order, autodiff's node -> forward node)."""
    draw = random.Random(seed)
    inputs, controls, everywhere, forward, backward = {}, {}, set(), [], {}
    for number in range(draw.randint(1, 3)):
        everywhere.add(f"feed_{number}")
        inputs[f"feed_{number}"] = ()
    for number in range(draw.randint(4, 14)):
        name = f"layer_{number}"
        inputs[name] = tensors_of(forward[-6:] or sorted(everywhere), draw, 3)
        if draw.random() < 0.3:
            inputs[name] += (f"{draw.choice(sorted(everywhere))}:0",)
        if draw.random() < 0.2 and forward:
            controls[name] = (draw.choice(forward),)
        forward.append(name)
    made = []
    for name in reversed(forward):
        gradient = f"gradient_of_{name}"
        inputs[gradient] = (*tensors_of(made[-3:] or forward[-1:], draw, 2), f"{name}:0")
        backward[gradient] = name
        made.append(gradient)
    scalars = []
    for number, gradient in enumerate(made):
        inputs[f"norm_{number}"] = (f"{gradient}:0",)
        scalars.append(f"norm_{number}")
    inputs["norm"] = tuple(f"{name}:0" for name in scalars)
    updates = []
    for number, gradient in enumerate(made):
        inputs[f"update_{number}"] = ("norm:0", f"{gradient}:0")
        updates.append(f"update_{number}")
    everywhere.add("train")
    inputs["train"], controls["train"] = (), tuple(updates)
    inputs["after"], controls["after"] = (f"{forward[-1]}:0",), ("train",)
    order = tuple(inputs)
    sizes = {f"{name}:0": 1 if name.startswith("norm") else draw.randint(8, 4096) for name in order}
    blocks = {forward[0]: "block", forward[1]: "block"} if draw.random() < 0.3 else {}
    graph = GraphToCut(order, inputs, controls, frozenset(everywhere), blocks, sizes)
    return graph, forward, backward


def value_of(name, taken):
    return hash((name, *taken))


def run_whole(graph):
    values = {}
    for node in graph.order:
        values[node] = value_of(node, (values[node_of(t)] for t in graph.inputs[node]))
    return values


def run_stages(graph, places, messages, count, draw):
    """Each stage carries out what it can, in any order; values by (stage, node), and in which order nodes have run."""
    values, received, order = {}, {}, []
    todo = {(stage, node) for node in graph.order for stage in range(count) if places.get(node, stage) == stage}
    received_by = {(m.target, m.tensor): m.number for m in messages if m.tensor}
    words = {}
    for m in messages:
        for taker in m.takers if not m.tensor else ():
            words.setdefault(taker, []).append(m.number)

    def taken(stage, tensor):
        source = node_of(tensor)
        return (
            values.get((stage, source))
            if places.get(source, stage) == stage
            else received.get(received_by[stage, tensor])
        )

    def is_ready(stage, node):
        waits = [c for c in graph.controls.get(node, ()) if places.get(c, stage) == stage]
        has_words = all(number in received for number in words.get(node, ()))
        return (
            all(taken(stage, t) is not None for t in graph.inputs[node])
            and all((stage, c) in values for c in waits)
            and has_words
        )

    while todo:
        able = sorted(one for one in todo if is_ready(*one))
        ready_messages = [
            m for m in messages if m.number not in received and all((m.source, n) in values for n in m.nodes)
        ]
        if not able and not ready_messages:
            raise AssertionError(f"nothing can go on: {sorted(todo)[:5]}")
        if ready_messages and (not able or draw.random() < 0.5):
            message = draw.choice(ready_messages)
            received[message.number] = values[message.source, message.nodes[0]]
            continue
        stage, node = draw.choice(able)
        values[stage, node] = value_of(node, (taken(stage, t) for t in graph.inputs[node]))
        order.append((stage, node))
        todo.remove((stage, node))
    return values, order
