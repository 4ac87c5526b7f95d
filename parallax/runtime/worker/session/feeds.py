"""Selects feeds and fetches of a step of a user's graph for verifications and profiles, which have no user's loop."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

import numpy as np

from parallax.analysis.reading.train_ops import find_last_ops, train_ops
from parallax.base.errors import ConfigError
from parallax.base.strict import shown
from parallax.base.types import Graph, Operation, Tensor, Value
from parallax.graph.view import GraphView
from parallax.report.text import list_first

_SHOWN = 8
"""The number of ops that a message names."""

Feeds = Callable[[int, int, int], dict[str, Value]]
"""(step, worker, number of workers) -> batch by the names of tensors."""


def train_op(graph: Graph, name: str | None) -> Operation | Tensor:
    """Returns the fetch of a step: the named op, else the optimizer's training op on which no other one depends.

    Raises:
        ConfigError: when there is none, or several; the message lists the training ops.
    """
    if name:
        try:
            return graph.as_graph_element(name)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"--fetch must name an op or tensor of the graph, got {name!r}. {_candidates(graph)}"
            ) from error
    made = {op.name: op for op in graph.get_collection("train_op")}
    if not made:
        raise ConfigError(
            "No optimizer of the graph has made a training op: name the op to run with --fetch NAME. "
            f"{_candidates(graph)}"
        )
    last = list(made) if len(made) == 1 else find_last_ops(GraphView(graph.as_graph_def()), list(made))
    if len(last) > 1:
        raise ConfigError(
            f"A step runs one op, but optimizers have made {len(last)}: {list_first(last, _SHOWN)}. Name one of them "
            f"with --fetch NAME, or an op that groups them. {_candidates(graph)}"
        )
    return made[last[0]]


def _candidates(graph: Graph) -> str:
    """The ops that a step may run, as text."""
    from parallax.analysis.graph_to_plan import analyse

    analysed = analyse(graph, synchronous=False)
    training_ops = train_ops(analysed.captured, analysed.sources)
    if not training_ops:
        return "No op of the graph updates a trained variable from its gradient."
    trained = len({source.part for source in analysed.sources})
    shown = [f"{op.name} ({len(op.variables)} of {trained} trained variables)" for op in training_ops]
    return f"Ops that train, and on which no other update depends: {list_first(shown, _SHOWN)}."


def placeholders_in(view: GraphView, nodes: Iterable[str]) -> list[str]:
    """The nodes that must be fed, sorted."""
    return sorted(n for n in nodes if view.op(n) in ("Placeholder", "PlaceholderV2"))


def missing_feeds(what: str, placeholders: list[str]) -> ConfigError:
    """The error about missing feeds."""
    return ConfigError(
        f"{what} needs values for the placeholders ({', '.join(placeholders[:5])}): pass --feeds FILE.py:FUNCTION "
        "(step, worker, num_workers -> {name: batch}) or --feeds FILE.npz."
    )


def named_batch(graph: Graph, batch: object) -> dict[str, Value]:
    """A batch by the names of tensors; the user may omit `:0`."""
    if not isinstance(batch, dict) or not all(isinstance(name, str) for name in batch):
        raise ConfigError(f"The function of --feeds must return a dict from names to arrays, got {batch!r}.")
    value_by_tensor = {}
    for name, value in batch.items():
        tensor = name if ":" in name else f"{name}:0"
        try:
            graph.get_tensor_by_name(tensor)
        except (KeyError, ValueError) as error:
            raise ConfigError(f"A feed must name a tensor of the graph, got {name!r}.") from error
        value_by_tensor[tensor] = np.asarray(value)
    return value_by_tensor


def read_feeds(text: str) -> Feeds:
    """Returns the feeds of a step and worker, from the user's file or function.

    Raises:
        ConfigError: when the text names neither.
    """
    return _feeds_of_file(Path(text)) if text.endswith(".npz") else _feeds_of_function(text)


def _feeds_of_file(path: Path) -> Feeds:
    """Arrays `[steps, rows, ...]` by placeholder; each worker reads its share of the rows. `[steps]` are scalars."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # NumPy, zipfile and zlib raise many kinds of errors for a damaged file
        why = shown(str(error) or type(error).__name__)
        raise ConfigError(f"{path}: feeds must be an .npz file of arrays [steps, rows, ...]: {why}.") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or not array.shape or not array.shape[0]:
            raise ConfigError(
                f"{path}: {shown(name)} must have at least one step, got the shape {np.shape(array)}. An array of "
                "feeds is [steps, rows, ...], or [steps] for scalars."
            )

    def feeds(step: int, worker: int, size: int) -> dict[str, Value]:
        return {name: _share(path, name, array[step % len(array)], worker, size) for name, array in arrays.items()}

    return feeds


def _share(path: Path, name: str, batch: Value, worker: int, size: int) -> Value:
    """The rows of one worker; a scalar as a whole."""
    if not np.ndim(batch):
        return batch
    if len(batch) % size:
        rows = f"{shown(name)} has {len(batch)} rows per step"
        raise ConfigError(f"{path}: {rows}, which cannot be divided evenly among {size} workers.")
    share = len(batch) // size
    return batch[worker * share : (worker + 1) * share]


def _feeds_of_function(text: str) -> Feeds:
    file, _, name = text.rpartition(":")
    if not file or not Path(file).is_file():
        raise ConfigError(f"--feeds must be FILE.npz or FILE.py:FUNCTION of a file that exists, got {text!r}.")
    module = _module_of(Path(file).resolve())
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(
            f"--feeds must name a function, but {file!r} has not defined {name!r} by the time it calls parallel_run."
        )
    return function  # type: ignore[no-any-return]


def _module_of(file: Path) -> ModuleType:
    """Loads a file as a module; the running script is not run again."""
    main = sys.modules["__main__"]
    if Path(getattr(main, "__file__", None) or "").resolve() == file:
        return main
    spec = importlib.util.spec_from_file_location("parallax_feeds", file)
    if spec is None or spec.loader is None:
        raise ConfigError(f"--feeds must name a Python file, got {str(file)!r}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
