"""How random numbers lie along the batch, and sampled candidates beside the labels of its examples.

One process draws as many random numbers for a larger batch, and as many samples. Losses with sampled classes look up
the rows of labels and samples together, one behind the other, and take them apart again.
"""

from __future__ import annotations

from parallax.analysis.propagation.axis_blocks import is_length
from parallax.analysis.propagation.axis_lengths import numbers_of_shape
from parallax.analysis.propagation.axis_part import ALIKE, AxisPart
from parallax.analysis.propagation.batch_axis import BatchAxes
from parallax.graph.view import split_tensor

_DRAWS = (
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("StatelessRandomUniformV2", "StatelessRandomNormalV2", "StatelessTruncatedNormalV2"),
)
"""Their inputs say a shape and a seed, and no example."""
_GATHERS = {"ResourceGather": (0, 1), "GatherV2": (0, 1), "Gather": (0, 1)}
"""By op the input that rows are taken of, and that which says which."""
_HITS = "ComputeAccidentalHits"


def with_candidates(axes: BatchAxes) -> BatchAxes:
    """The answers with random numbers, and rows of labels and of samples."""
    drawn = axes.supposing(_drawn(axes))
    found: dict[str, AxisPart | None] = {}
    for node in drawn.view.nodes:
        if drawn.view.op(node) == "Slice" and (part := _taken_apart(drawn, node)) is not None:
            found[f"{node}:0"] = part
    return drawn.supposing(found) if found else drawn


def _drawn(axes: BatchAxes) -> dict[str, AxisPart | None]:
    found: dict[str, AxisPart | None] = {}
    for node in axes.view.nodes:
        op = axes.view.op(node)
        if op in _DRAWS:
            found[f"{node}:0"] = ALIKE
        elif op.endswith("CandidateSampler"):
            found |= {f"{node}:0": ALIKE, f"{node}:1": AxisPart(0), f"{node}:2": ALIKE}
        elif op == _HITS and axes.of(axes.view.inputs(node)[0]) == 0:  # each label's own samples that are equal to it
            found |= {f"{node}:{number}": AxisPart(0) for number in range(3)}
    return found


def _taken_apart(axes: BatchAxes, node: str) -> AxisPart | None:
    """What a cut takes of rows of labels with those of samples behind them: the ones or the others."""
    view, (rows, begin, size) = axes.view, axes.view.inputs(node)
    numbers = _numbers_of(axes, rows)
    joined = split_tensor(numbers)[0]
    if view.op(joined) != "ConcatV2" or len(view.inputs(joined)) != 3:
        return None
    labels, samples, axis = view.inputs(joined)
    place = axes.constant(axis)
    if place is None or int(place) != 0 or axes.of(labels) != 0 or not axes.is_equal(samples):
        return None
    first, rest = axes.constant(begin), axes.constant(size)
    if first is not None and not first.any() and _is_first_a_length(axes, size, labels):
        return AxisPart(0)
    return ALIKE if rest is not None and (rest == -1).all() and _is_first_a_length(axes, begin, labels) else None


def _numbers_of(axes: BatchAxes, rows: str) -> str:
    """The numbers by which rows were looked up in what all workers have alike."""
    node = split_tensor(axes.view.source(rows))[0]
    if axes.view.op(node) not in _GATHERS:
        return rows
    table, numbers = (axes.view.inputs(node)[slot] for slot in _GATHERS[axes.view.op(node)])
    return axes.view.source(numbers) if axes.fits(table) or axes.states[table].kind == "handle" else rows


def _is_first_a_length(axes: BatchAxes, numbers: str, labels: str) -> bool:
    """Whether the first of some numbers is how many labels there are."""
    view, node = axes.view, split_tensor(axes.view.source(numbers))[0]
    known = numbers_of_shape(axes, numbers)
    if known and known[0] is not None:
        return known[0] == (axes.shape(labels) or (None,))[0]
    if view.op(node) == "Pack":
        return is_length(axes, view.inputs(node)[0])
    return view.op(node) == "Shape" and axes.of(view.inputs(node)[0]) == 0
