"""Finds what must be the workers' mean besides the gradients of variables, where gradients are used within a loss.

A gradient by a tensor that all workers hold alike (weights after a step of descent) is such a mean. And where autodiff
goes back through a mean, what it has there (the cotangent of the gradient that was averaged) is averaged too before it
goes on: the adjoint of a mean over the workers is the same mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from parallax.analysis.propagation.states import SAME, Opaque, Plain
from parallax.analysis.propagation.walk import NoRule, Walk, part_of
from parallax.analysis.reading.capture import Captured, variable_of_tensor
from parallax.analysis.reading.gradients import inside_of
from parallax.analysis.reading.recorded import Record, downstream
from parallax.errors import GraphError
from parallax.graph.control_flow import MERGES, is_loop_merge
from parallax.graph.view import Edge, split_tensor
from parallax.plans.rewrites import AllReduce


@dataclass(frozen=True, slots=True)
class Passage:
    """A tensor that autodiff made, of which `edges` take the mean over the workers.

    Attributes:
        tensor: a gradient by what is no variable, or a cotangent.
        edges: that take the mean.
        targets: by what the gradient is; the mean is taken where the workers hold one of them alike.
        of_variable: whether a variable is among the targets.
        of_rows: whether the gradient has rows only, as IndexedSlices.
        gradient: whose cotangent it is; empty for a gradient itself.
        is_mixed: whether a part of the cotangent comes from a gradient of the same call of autodiff.
    """

    tensor: str
    edges: tuple[Edge, ...]
    targets: tuple[str, ...]
    of_variable: bool
    of_rows: bool
    gradient: str = ""
    is_mixed: bool = False


def find_passages(captured: Captured) -> dict[str, list[Passage]]:
    """All passages of a graph, by their tensor."""
    found: dict[str, list[Passage]] = {}
    for passage in (*_by_tensors(captured), *_cotangents(captured)):
        if passage.edges:
            found.setdefault(passage.tensor, []).append(passage)
    return found


def visit(walk: Walk, node: str) -> None:
    """Has the mean taken of what a node gives, where it is a passage.

    Raises:
        GraphError: the mean cannot be taken there.
        NoRule: it is made of gradient rows by an op that has no rule.
    """
    for tensor in walk.view.outputs(node) if walk.known.passages else ():
        for passage in walk.known.passages.get(tensor, ()):
            state = walk.states[tensor]
            if state != SAME and node in walk.known.training and any(_starts_alike(walk, t) for t in passage.targets):
                raise _refusal(walk, passage)
            if state == SAME or not _is_alike(walk, passage):
                continue
            if passage.of_rows or passage.is_mixed or not walk.agrees(walk.known.branches[node]):
                if node in walk.known.training:
                    raise _refusal(walk, passage)
                continue
            if isinstance(state, Opaque):
                raise NoRule(state.part, state.reason)
            if not isinstance(state, Plain):
                raise NoRule(part_of(walk, state), f"{walk.view.op(node)} {node!r} has no rule for its gradient rows")
            edges = tuple(e for e in passage.edges if (tensor, e.node) not in walk.marked)
            if edges:
                walk.all_reduces.append(AllReduce(tensor, edges, "mean"))
                walk.marked.update({(tensor, e.node): SAME for e in edges})
                walk.passed.append(tensor)


def check_kept(walk: Walk) -> None:
    """Gradients that are kept over several batches must not be used within a loss.

    Raises:
        GraphError: one of them is.
    """
    if walk.passed:
        raise GraphError(
            "Where an update takes several batches, no gradient must be used within a loss: the mean over all batches "
            f"of {walk.passed[0]!r} is needed in each of them. Leave accumulate_steps at 1."
        )


def _is_alike(walk: Walk, passage: Passage) -> bool:
    """Whether all workers hold what a gradient is by; a target that the walk has not come to is asked for later."""
    if passage.of_variable:
        return True
    states = {t: walk.states.get(t) for t in passage.targets}
    walk.asked.update(t for t, state in states.items() if state is None)
    return any(state == SAME or (state is None and t in walk.assumed.alike) for t, state in states.items())


def _starts_alike(walk: Walk, target: str) -> bool:
    """Whether a tensor is alike as a loop begins, and nothing says that it differs later but that it goes round."""
    view, waiting, seen, in_loop = walk.view, [target], set[str](), False
    while waiting:
        tensor = waiting.pop()
        if tensor in seen or walk.states.get(tensor) == SAME:
            continue
        seen.add(tensor)
        node = split_tensor(tensor)[0]
        inputs = list(view.inputs(node))
        if view.op(node) in MERGES and is_loop_merge(view, node):
            in_loop = True
            inputs = [t for t in inputs if not view.op(split_tensor(t)[0]).endswith("NextIteration")]
        elif all(walk.states.get(t) == SAME for t in inputs):
            return False  # fed, drawn or read
        waiting += inputs
    return in_loop


def _refusal(walk: Walk, passage: Passage) -> GraphError:
    op = walk.view.op(split_tensor(passage.tensor)[0])
    by = ", ".join(repr(t) for t in passage.targets[:3])
    where = f"{op} {passage.tensor!r}"
    if passage.of_rows:
        if not passage.gradient:
            return GraphError(
                f"A gradient by what is no variable must not have rows only: {where} is one by {by}, which all workers "
                "hold alike. Look rows up by tf.matmul(tf.one_hot(ids, rows), table) there."
            )
        return GraphError(
            f"A gradient that is differentiated again must not have rows only: {where} goes back through the gradient "
            f"rows {passage.gradient!r} by {by}. Take the first gradient by the looked-up rows, or look them up by "
            "tf.matmul(tf.one_hot(ids, rows), table) in the first loss."
        )
    if passage.is_mixed:
        return GraphError(
            f"Gradients that are differentiated again must be computed apart: {where} goes back through "
            f"{passage.gradient!r} by {by}, from which the same call of tf.gradients computed another one. "
            "Call tf.gradients once for each variable."
        )
    return GraphError(
        f"A gradient that is used within a loss must be outside of loops and conditionals: {where} is part of one by "
        f"{by}. Unroll the loop in Python, or compute the gradient before the conditional."
    )


def _by_tensors(captured: Captured) -> list[Passage]:
    """Gradients by what is no variable."""
    view, found = captured.view, []
    for record, inside in zip(captured.records, inside_of(captured), strict=True):
        for target, values, indices in record.gradients:
            if variable_of_tensor(view, captured.variables, target):
                continue
            edges = tuple(e for e in view.consumers(values) if e.node not in inside)
            found.append(Passage(values, edges, (target,), of_variable=False, of_rows=indices is not None))
    return found


def _cotangents(captured: Captured) -> list[Passage]:
    view = captured.view
    targets: dict[str, tuple[str, ...]] = {}
    rows: set[str] = set()
    for record in captured.records:
        for target, values, indices in record.gradients:
            targets[values] = (*targets.get(values, ()), target)
            rows |= {values} if indices is not None else set()
    autodiff = frozenset(op for record in captured.records for op in record.ops)
    found = []
    for gradient, cotangent in (pair for record in captured.records for pair in record.cotangents):
        by = targets.get(gradient, ())
        targets.setdefault(cotangent, by)  # of a cotangent there may be one as well
        takers = autodiff - _adjoint_of(captured, cotangent)
        edges = [e for e in view.consumers(cotangent) if e.node in takers]
        of_variable = any(variable_of_tensor(view, captured.variables, target) for target in by)
        mixed = _is_mixed(captured, gradient, cotangent)
        found.append(Passage(cotangent, tuple(edges), by, of_variable, gradient in rows, gradient, mixed))
    return found


def _adjoint_of(captured: Captured, tensor: str) -> set[str]:
    """The nodes by which later calls of autodiff go back through what made a tensor."""
    found: set[str] = set()
    for record in captured.records:
        starts = [cotangent for gradient, cotangent in record.cotangents if gradient == tensor]
        found |= downstream(captured.view, starts, record.ops)
    return found


def _is_mixed(captured: Captured, gradient: str, cotangent: str) -> bool:
    """Whether a gradient was computed on within its call of autodiff, and the cotangent has a part from there."""
    view = captured.view
    for record in captured.records:
        others = {values for _, values, _ in record.gradients} - {gradient}
        if not _delivers(record, gradient) or not any(e.node in record.ops for e in view.consumers(gradient)):
            continue
        for later in captured.records:
            starts = [c for g, c in later.cotangents if g in others and c != cotangent]
            if split_tensor(cotangent)[0] in downstream(view, starts, later.ops):
                return True
    return False


def _delivers(record: Record, gradient: str) -> bool:
    return any(values == gradient for _, values, _ in record.gradients)
