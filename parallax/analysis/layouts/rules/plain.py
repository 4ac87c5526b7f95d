"""Layout rules of ops without a specific one, where no input is sharded or partial, and of ops that copy inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from parallax.analysis.layouts.rules.facts import LENGTHS, REPLICATED, Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.analysis.layouts.rules.values import compute_value, computes_value

Rule = Callable[[StepWalk, str], list[Fact] | None]


def is_plain(facts: Sequence[Fact]) -> bool:
    """Whether no fact is of a sharded or partial tensor."""
    return all(f.is_same or f.is_lengths for f in facts)


def plain(step: StepWalk, node: str) -> list[Fact] | None:
    """The rule of ops without a specific one, where no input is sharded or partial."""
    if not is_plain(step.inputs(node)):
        return None
    facts = step.read_lengths_alike(node)
    if all(f.is_same for f in facts):
        return step.all_outputs(node, REPLICATED, None, compute_value(step.view, node, facts))
    if not computes_value(step.view.op(node)):
        return None  # values of the global batch would be combined with per-worker lengths
    return step.all_outputs(node, LENGTHS, None, compute_value(step.view, node, facts))


def with_plain_fallback(of_sharded: Rule) -> Rule:
    """The rule of an op with a specific one for sharded or partial inputs, and the plain one for others."""

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        facts = of_sharded(step, node)
        return plain(step, node) if facts is None else facts

    return rule


def print_out(step: StepWalk, node: str) -> list[Fact] | None:
    """Print returns its first input; each worker prints its own part of the others."""
    fact = step.inputs(node)[0]
    step.keep_local(node)
    return step.all_outputs(node, fact.layout, fact.dims, fact.value)


def format_text(step: StepWalk, node: str) -> list[Fact] | None:
    """StringFormat: the text of an assertion, which is shown where it fails, has the values of its worker."""
    takers = step.view.consumers(f"{node}:0")
    if not takers or any(step.view.op(edge.node) != "Assert" for edge in takers):
        return None
    step.keep_local(node)
    return step.all_outputs(node, REPLICATED, ())


def pass_each(step: StepWalk, node: str) -> list[Fact] | None:
    """IdentityN and NextIteration: each result has the layout of its input."""
    return list(step.inputs(node))
