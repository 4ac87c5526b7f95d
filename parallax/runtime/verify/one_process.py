"""The one process of a comparison: runs the user's own graph on global batches, from given or perturbed values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from parallax.analysis.graph_to_plan import AnalysedGraph
from parallax.analysis.reading.capture import initialization_phases
from parallax.analysis.reading.construction.digests import SHAPES
from parallax.analysis.reading.construction.launcher_graph import export_graph
from parallax.base.errors import ConfigError, GraphError
from parallax.base.types import Array, Graph, GraphDef, Operation, Session, Value, Variable
from parallax.graph.spec import VariableClass
from parallax.runtime.verify.batches_of_graph import open_sources
from parallax.runtime.verify.verdicts import OTHERS, OWN, VARIABLES
from parallax.runtime.worker.session.bfloat16 import options_with
from parallax.transform.building.editor import Worker
from parallax.transform.passes.random_seeds import set_seeds

v1 = tf.compat.v1

STARTS = 3
"""The number of perturbed starts for noise: in one alone, a scalar of pure noise may agree by chance."""

_ASSIGNS = ("Assign", "AssignVariableOp")

Values = dict[str, Value]
"""Variable -> its value."""


class OneProcess:
    """The user's graph, seeded as all workers of a verification are.

    Args:
        graph: the user's.
        analysed: the same.
        batch: a global batch; placeholders of other shapes are opened.
        seed: of the job.
        compute_dtype: the element type in which products are computed.
        read: tensors of the batch that the graph reads itself; see batches_of_graph.py.
        inlined: whether function calls are inlined, as in the workers' graphs, so that their tensors can be fetched.
    """

    def __init__(
        self,
        graph: Graph,
        analysed: AnalysedGraph,
        batch: Mapping[str, Value],
        seed: int,
        compute_dtype: str | None,
        read: Mapping[str, bool] | None = None,
        inlined: bool = False,
    ) -> None:
        self._initialize = initialization_phases(analysed.captured)
        self._initialize.append([op.name for op in graph.get_collection(v1.GraphKeys.TABLE_INITIALIZERS)])
        self._reads = {name: str(graph.as_graph_element(v).name) for name, v in variables_of(graph).items()}
        self._initial = {v.part.op: v.initializer for v in analysed.captured.variables.values() if v.initializer}
        self._options = options_with(v1.ConfigProto(), compute_dtype)
        self.kinds = kinds_of(analysed)
        graph_def = export_graph(graph, add_shapes=False)
        if inlined:
            graph_def.CopyFrom(analysed.captured.view.graph_def)
            for node in graph_def.node:  # the attributes of opened placeholders would still be a worker's
                node.attr.pop(SHAPES, None)
        _open_batch(graph_def, batch)
        open_sources(graph_def, analysed.captured.view, batch, read or {})
        set_seeds(graph_def, frozenset(), Worker(0, 1, seed, equal_randomness=True))
        self._graph = tf.Graph()
        with self._graph.as_default(), _explaining_batch_errors():
            tf.graph_util.import_graph_def(graph_def, name="")

    def run(
        self,
        fetches: Sequence[str],
        batches: Sequence[Mapping[str, Value]],
        start: Values | None = None,
        rounding: tuple[float, int] | None = None,
    ) -> tuple[Values, Values]:
        """Runs the steps in a new session.

        Args:
            fetches: the fetches of a step.
            batches: the global batch of each step.
            start: values of variables that replace their initial ones.
            rounding: the perturbation of trained variables at the start, relative to each element, and the number of
                the draw of directions; for each element type at least its own rounding.

        Returns:
            All variables before the steps, and after.

        Raises:
            GraphError: the graph does not accept the global batch.
        """
        with self.begin(start, rounding) as session:
            before = self.read(session)
            for batch in batches:
                session.run(list(fetches), batch)
            return before, self.read(session)

    @contextmanager
    def begin(self, start: Values | None = None, rounding: tuple[float, int] | None = None) -> Iterator[Session]:
        """A new session in which no step has been taken; the arguments are those of `run`."""
        with self._begin() as session:
            self.write(session, start or {})
            if rounding is not None:
                self.write(session, self._move(session, *rounding))
            yield session

    def read(self, session: Session) -> Values:
        """The values of all variables."""
        values: Values = session.run(self._reads)
        return values

    def write(self, session: Session, values: Mapping[str, Value]) -> None:
        """Assigns values to variables.

        Raises:
            ConfigError: one has no op that does it.
        """
        for name, value in values.items():
            op = self._assigning(name)
            if op is None:
                raise ConfigError(
                    f"A compared variable must have an op that assigns its initial value, but {name!r} has none."
                )
            session.run(op.name, {op.inputs[1]: value})

    def each_step(
        self,
        fetches: Sequence[Sequence[str]],
        batches: Sequence[Mapping[str, Value]],
        starts: Iterable[Mapping[str, Value]],
        rounding: tuple[float, int] | None = None,
    ) -> Iterator[list[Value]]:
        """Runs steps one by one, each from given values of the variables.

        Args:
            fetches: the fetches of each step.
            batches: the global batch of each.
            starts: the values of variables before each.
            rounding: as for `run`, before each.

        Yields:
            The fetched values.

        Raises:
            GraphError: the graph does not accept the global batch.
        """
        with self._begin() as session:
            for names, batch, start in zip(fetches, batches, starts, strict=True):
                self.write(session, start)
                if rounding is not None:
                    self.write(session, self._move(session, *rounding))
                yield session.run(list(names), batch)

    def sizes(self, tensors: Sequence[str], batch: Mapping[str, Value]) -> dict[str, int]:
        """The bytes of each tensor in the first step, without a step being taken."""
        with self._graph.as_default():
            counts = {name: tf.size(self._graph.get_tensor_by_name(name), out_type=tf.int64) for name in tensors}
        with self._begin() as session:
            size_by_name = session.run(counts, batch)
        return {name: int(size_by_name[name]) * self._graph.get_tensor_by_name(name).dtype.size for name in tensors}

    def shapes(
        self, tensors: Sequence[str], batches: Sequence[Mapping[str, Value]]
    ) -> Iterator[dict[str, tuple[int, ...]]]:
        """The shape of each tensor, for each batch, without a step being taken."""
        if not tensors:
            yield from ({} for _ in batches)
            return
        with self._graph.as_default():
            shape_by_name = {
                name: tf.shape(self._graph.get_tensor_by_name(name), out_type=tf.int64) for name in tensors
            }
        with self._begin() as session:
            for batch in batches:
                yield {name: tuple(map(int, shape)) for name, shape in session.run(shape_by_name, batch).items()}

    @contextmanager
    def _begin(self) -> Iterator[Session]:
        """A session in which the variables have their initial values."""
        with _explaining_batch_errors(), v1.Session(graph=self._graph, config=self._options) as session:
            for phase in self._initialize:
                session.run(phase)
            yield session

    def noise(
        self,
        fetches: Sequence[str],
        batches: Sequence[Mapping[str, Value]],
        runs: tuple[Values, Values],
        rounding: float,
        start: Values | None = None,
    ) -> dict[str, float]:
        """The change of `runs`' changes when the steps start from perturbed values; see verdicts.py.

        Args:
            fetches: the fetches of a step.
            batches: the global batch of each step.
            runs: the result of `run`.
            rounding: relative to an element, at least.
            start: values of variables at the start.
        """
        return noise_of(runs, [self.run(fetches, batches, start, (rounding, draw)) for draw in range(STARTS)])

    def _move(self, session: Session, rounding: float, draw: int) -> Values:
        """The trained variables' values, each element perturbed by a rounding up or down."""
        generator = np.random.default_rng(draw)
        moved = {}
        for name, value in session.run({n: r for n, r in self._reads.items() if self._is_moved(n)}).items():
            unit = max(rounding, float(np.spacing(np.ones((), value.dtype))))
            signs = generator.integers(0, 2, value.shape) * 2 - 1
            moved[name] = (value.astype(np.float64) * (1 + unit * signs)).astype(value.dtype)
        return moved

    def _is_moved(self, name: str) -> bool:
        return self.kinds.get(name) == VARIABLES and self._assigning(name) is not None

    def _assigning(self, name: str) -> Operation | None:
        """The op that assigns a variable's initial value; None when there is none."""
        initializer = self._initial.get(name)
        op = self._graph.get_operation_by_name(initializer) if initializer else None
        return op if op is not None and op.type in _ASSIGNS else None


def noise_of(runs: tuple[Values, Values], perturbed: Iterable[tuple[Values, Values]]) -> dict[str, float]:
    """By variable, the change of `runs`' change in perturbed runs, the largest of these; see verdicts.py.

    Args:
        runs: the values before and after the steps.
        perturbed: those of each run from perturbed values.
    """
    noise = dict.fromkeys(runs[0], 0.0)
    for other in perturbed:
        for name, largest in noise.items():
            noise[name] = max(largest, float(np.linalg.norm(_change(other, name) - _change(runs, name))))
    return noise


def variables_of(graph: Graph) -> dict[str, Variable]:
    """The variables that are compared, by name: all except strings."""
    global_variables = graph.get_collection(v1.GraphKeys.GLOBAL_VARIABLES)
    return {str(v.name).removesuffix(":0"): v for v in global_variables if v.dtype.base_dtype != tf.string}


def kinds_of(analysed: AnalysedGraph) -> dict[str, str]:
    """The kind of every variable op: trained, slot of a name, other, or per-worker."""
    kinds = {}
    for variable in analysed.spec.variables:
        of_all = {VariableClass.LOCAL: OWN}.get(variable.cls, VARIABLES if variable.gradients else OTHERS)
        kinds.update({part.op: of_all for part in variable.parts})
        for slot in variable.slots:
            kinds.update({op: f"slot {slot.name.removeprefix(variable.name).strip('/')}" for op in slot.ops})
    return kinds


def concatenate_batches(batches: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """Concatenates the workers' batches, by tensor.

    Raises:
        ConfigError: a scalar is not equal on all workers, workers feed different tensors, or their feeds have
            incompatible shapes.
    """
    global_batch = {}
    for other in batches:
        if odd := sorted(other.keys() ^ batches[0].keys()):
            raise ConfigError(f"Every worker must feed its part of the global batch, but some do not feed {odd[0]!r}.")
    for name in batches[0]:
        pieces = [batch[name] for batch in batches]
        if len({np.shape(piece)[1:] for piece in pieces}) > 1 or len({np.ndim(piece) for piece in pieces}) > 1:
            raise ConfigError(
                f"The workers' batches must be stackable, but {name!r} has the shapes "
                f"{[np.shape(piece) for piece in pieces]}. Pad them to the same length."
            )
        if np.ndim(pieces[0]):
            global_batch[name] = np.concatenate(pieces)
        elif all(np.array_equal(p, pieces[0]) for p in pieces):
            global_batch[name] = pieces[0]
        else:
            values = [np.asarray(p).item() for p in pieces]
            raise ConfigError(f"A scalar feed must be equal on all workers, but {name!r} is {values}.")
    return global_batch


def _change(run: tuple[Values, Values], name: str) -> Array:
    return np.asarray(run[1][name], np.float64) - np.asarray(run[0][name], np.float64)


@contextmanager
def _explaining_batch_errors() -> Iterator[None]:
    """Converts TensorFlow's errors about a batch that a graph does not accept into an error of the project."""
    try:
        yield
    except (ValueError, tf.errors.InvalidArgumentError) as error:
        raise GraphError(_fixed_batch(str(error))) from error


def _fixed_batch(message: str) -> str:
    around = ("Graph execution error", "Detected at node", "Node:", "Original stack trace", "\t")
    text = " ".join(line for line in message.splitlines() if line and not line.startswith(around))
    return (
        "The single process of a verification gets the global batch, but the script's graph does not accept it: "
        f"{text[:300]}. Leave the batch dimension of the placeholders and datasets open (None), or pass the arguments "
        "with which the script builds the global batch: --joined-args '--batch 64'."
    )


def check_fits(graph: Graph, batch: Mapping[str, Value]) -> None:
    """Refuses a graph whose static shapes the global batch contradicts; nothing is run.

    Raises:
        GraphError: says where.
    """
    graph_def = export_graph(graph, add_shapes=False)
    _open_batch(graph_def, batch, as_large=True)
    with tf.Graph().as_default(), _explaining_batch_errors():
        tf.graph_util.import_graph_def(graph_def, name="")


def _open_batch(graph_def: GraphDef, batch: Mapping[str, Value], as_large: bool = False) -> None:
    """Opens the first dimension of fed placeholders with another batch size, or sets it to the batch's size."""
    nodes = {node.name: node for node in graph_def.node}
    for name, value in batch.items():
        node = nodes.get(name.removesuffix(":0"))
        dims: Any = node.attr["shape"].shape.dim if node is not None and "shape" in node.attr else ()
        if len(dims) > 0 and np.ndim(value) > 0 and dims[0].size not in (-1, len(value)):
            dims[0].size = len(value) if as_large else -1
