"""Finds constructs of a graph that are allowed but may be unintended: no training, or training other than it looks."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from parallax.analysis.reading.batches.batch_sources import random_ops
from parallax.analysis.reading.capture import CapturedGraph
from parallax.analysis.reading.gradients import STATED, gradient_updates
from parallax.analysis.reading.train_ops import train_ops
from parallax.graph.spec import GradientSource, GraphSpec, VariableClass
from parallax.graph.view import GraphView
from parallax.report.text import list_first

_some = partial(list_first, most=5)
_PLACEHOLDERS = ("Placeholder", "PlaceholderV2")


class Suspicion(NamedTuple):
    """A construct that may be unintended; `is_note` if it is for information only."""

    text: str
    is_note: bool = False


def suspicions(captured: CapturedGraph, spec: GraphSpec, sources: tuple[GradientSource, ...]) -> list[Suspicion]:
    """Finds constructs of a graph that may be unintended.

    Args:
        captured: the graph.
        spec: its classification.
        sources: where autodiff delivers its gradients.
    """
    updates = gradient_updates(captured, sources)
    step = captured.view.ancestors(updates)
    suspicious = [*_of_updates(captured, sources), *_of_variables(spec)]
    parts = sorted({s.part for s in sources if s.found_by not in STATED})
    if parts:
        suspicious.append(
            Suspicion(
                f"The gradients of {_some(parts)} were not recorded while the graph was built, and are found by name. "
                "Import parallax after TensorFlow and before the model is built."
            )
        )
    return [*suspicious, *_of_step(captured.view, step)]


def _of_updates(captured: CapturedGraph, sources: tuple[GradientSource, ...]) -> list[Suspicion]:
    training_ops = train_ops(captured, sources)
    if len(training_ops) < 2:
        return []
    names = [f"{op.name} ({len(op.variables)} variables)" for op in training_ops]
    return [Suspicion(f"Several ops train independently of each other: {_some(names)}.", is_note=True)]


def _of_variables(spec: GraphSpec) -> list[Suspicion]:
    suspicious = []
    unused = [v.name for v in spec.variables if v.trainable and not v.gradients]
    if unused:
        suspicious.append(
            Suspicion(
                f"Trainable variables that no gradient updates: {_some(unused)}. Does the loss not depend on them? If "
                "that is intended, create them with trainable=False."
            )
        )
    own = [v.name for v in spec.variables if v.cls == VariableClass.LOCAL]
    if own:
        suspicious.append(Suspicion(f"Each worker keeps its own value of {_some(own)} (class local).", is_note=True))
    for variable in spec.variables:
        if variable.cls == VariableClass.NOT_SHARDABLE:
            text = f"The rows of {variable.name} cannot be sharded: {variable.reason or 'an op is not supported'}."
            suspicious.append(Suspicion(text, is_note=True))
    return suspicious


def _of_step(view: GraphView, step: set[str]) -> list[Suspicion]:
    suspicious = []
    fixed = sorted(n for n in step if view.op(n) in _PLACEHOLDERS and _fixed_rows(view, n) > 1)
    if fixed:
        text = f"Placeholders with a fixed batch size: {_some(fixed)}. `parallax verify` then needs --joined-args."
        suspicious.append(Suspicion(text, is_note=True))
    random_draws = random_ops(view, step)
    if random_draws:
        text = f"A step has random ops: {_some(random_draws)}. Each worker draws its own numbers; where their shape "
        suspicious.append(Suspicion(f"{text}depends on the batch, `parallax verify` cannot compare.", is_note=True))
    return suspicious


def _rows(view: GraphView, tensor: str) -> int:
    """The static length of the first axis; 0 if unknown."""
    shape = view.shape(tensor)
    return (shape[0] or 0) if shape else 0


def _fixed_rows(view: GraphView, placeholder: str) -> int:
    """The static length of a placeholder's batch; 0 for other nodes."""
    return _rows(view, f"{placeholder}:0") if view.op(placeholder) in _PLACEHOLDERS else 0
