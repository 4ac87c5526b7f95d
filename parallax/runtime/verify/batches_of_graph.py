"""Feeds the one process the batches that the workers read within the graph: of datasets, queues and Python code.

In the one process these would give one worker's batch. So each worker saves what it reads in a step, and the one
process is fed the rows of all workers. Batches read inside conditionals and loops can be neither fetched nor fed, nor
can elements that are sparse or ragged.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tensorflow as tf

from parallax.analysis.propagation.walk import Walk
from parallax.analysis.reading.batches.batch_sources import batch_sources, data_ops
from parallax.base.errors import ConfigError
from parallax.base.types import Array, GraphDef, Value
from parallax.graph.batches import is_opened
from parallax.graph.view import GraphView, node_of
from parallax.plans.layouts import Replicated
from parallax.runtime.supervisor.sealed_files import read_file_value, write_value

BATCHES_FILE = "batches.json"
_DATASETS = ("OneShotIterator",)
_END = b"."
"""Follows each string of a saved array, as NumPy drops zero bytes at the end of one."""


def find_batches_of(walk: Walk, fetch: str) -> tuple[dict[str, bool], list[str]]:
    """The batches that a step reads within the graph.

    Args:
        walk: of the graph.
        fetch: the op that a step runs.

    Returns:
        Tensor -> whether it has a row for each example, else all workers read the same; and the ops of which some
        results cannot be fetched.
    """
    view, layouts = walk.view, walk.facts.layouts
    step, sources = view.ancestors([fetch]), batch_sources(view, [fetch])
    facts = {} if layouts is None else layouts.facts
    tensors, complete = dict[str, bool](), set[str]()
    for source in sources:
        takers = {
            tensor: [edge.node for edge in view.consumers(tensor) if edge.node in step]
            for tensor in (*view.outputs(source.node), *source.tensors)
        }
        needed = [tensor for tensor, nodes in takers.items() if nodes]
        if source.is_iterator and not set(needed) <= set(source.tensors):
            continue
        complete.add(source.node)
        for tensor in needed:
            is_open = any(is_opened(view.nodes[node]) for node in takers[tensor])
            is_same = tensor in facts and isinstance(facts[tensor].layout, Replicated) and not is_open
            tensors[tensor] = view.shape(tensor) != () and not is_same
    hidden = [node for node in data_ops(view, step) if view.op(node) not in _DATASETS and node not in complete]
    return tensors, hidden


def save_batches(folder: Path, tensors: Mapping[str, bool]) -> None:
    """Saves for both sides the tensors that workers read."""
    write_value(folder / BATCHES_FILE, dict(tensors))


def read_batches(folder: Path) -> dict[str, bool]:
    """Reads the tensors that `save_batches` has saved."""
    return read_file_value(folder / BATCHES_FILE, dict[str, bool])


def concatenate_read(files: Iterable[Sequence[Path]], tensors: Mapping[str, bool]) -> dict[str, Array]:
    """Concatenates what the workers have read for one global batch.

    Args:
        files: of the workers, in the order of their rows; several where stages of the model have parts.
        tensors: as returned by `find_batches_of`.

    Raises:
        ConfigError: rows cannot be concatenated, or what has no rows is not the same on all workers.
    """
    with ExitStack() as stack:
        parts = [ChainMap(*(stack.enter_context(np.load(file)) for file in of_rows)) for of_rows in files]
        return {tensor: _join(tensor, [part[tensor] for part in parts], rows) for tensor, rows in tensors.items()}


def _join(tensor: str, parts: Sequence[Array], are_rows: bool) -> Array:
    shapes = [part.shape for part in parts]
    if are_rows and parts[0].ndim:
        if len({shape[1:] for shape in shapes}) > 1:
            raise ConfigError(
                f"The workers' batches must be stackable, but {tensor!r} of the graph has the shapes {shapes}. Pad "
                "them to the same length."
            )
        joined = np.concatenate(parts)
    elif all(np.array_equal(part, parts[0]) for part in parts):
        joined = parts[0]
    else:
        raise ConfigError(
            f"The one process cannot be fed what the workers read: {tensor!r} of the graph has no row for each "
            "example, and differs between them. Have the dataset return batches."
        )
    return as_text(joined) if joined.dtype.kind == "S" else joined


def text_as_bytes(value: Value) -> Array:
    """An array of strings, as a file of arrays holds it."""
    array = np.asarray(value, object)
    return np.array([one + _END for one in array.ravel()], "S").reshape(array.shape)


def as_text(saved: Array) -> Array:
    """The strings of which `text_as_bytes` made an array."""
    found = np.empty(saved.size, object)
    found[:] = [bytes(one)[: -len(_END)] for one in saved.ravel()]
    return found.reshape(saved.shape)


def open_sources(
    graph_def: GraphDef, view: GraphView, batches: Mapping[str, Value], tensors: Mapping[str, bool]
) -> None:
    """Lets batches of another length be fed for the results of the ops that read them.

    Each op gets another name, and an identity its own, whose inputs have the length of the global batch where the
    graph states that of a worker's.

    Args:
        graph_def: modified in place.
        view: of the same graph, for shapes.
        batches: of one step.
        tensors: as returned by `find_batches_of`.
    """
    nodes = {node.name: node for node in graph_def.node}
    for name in {node_of(tensor): None for tensor in tensors}:
        reads, outputs = nodes[name], view.outputs(name)
        identity = graph_def.node.add(name=name, op="IdentityN", device=reads.device)
        identity.attr["T"].list.type.extend(view.dtype(tensor) for tensor in outputs)
        reads.name = f"{name}/read"
        for number, tensor in enumerate(outputs):
            if tensor not in tensors:
                identity.input.append(f"{reads.name}:{number}")
                continue
            fed = graph_def.node.add(name=f"{name}/fed_{number}", op="Placeholder", device=reads.device)
            fed.attr["dtype"].type = view.dtype(tensor)
            fed.attr["shape"].shape.CopyFrom(
                tf.TensorShape(_open_shape(view, tensor, batches[tensor], tensors[tensor])).as_proto()
            )
            identity.input.append(fed.name)


def _open_shape(view: GraphView, tensor: str, value: Value, are_rows: bool) -> tuple[int | None, ...] | None:
    """What the graph states, with the length of the global batch for that of a worker's."""
    shape = view.shape(tensor)
    return (len(value), *shape[1:]) if are_rows and shape and shape[0] is not None else shape
