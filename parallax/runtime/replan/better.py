"""Decides whether another plan is worth a change, and formats the reason."""

from __future__ import annotations

from dataclasses import dataclass

from parallax.plans.plan import Plan
from parallax.report.diff import places_text
from parallax.report.text import ms_text, pluralize


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of comparing the current plan with the best one.

    Attributes:
        plan: the better one; None if the job stays with its plan.
        text: the comparison, for readers; lines that end with a newline.
    """

    plan: Plan | None
    text: str


def verdict(now: Plan, now_s: float | None, best: Plan, margin: float, steps: int) -> Comparison:
    """Compares two plans of one graph by their predicted steps, from the same profiles.

    Args:
        now: the current plan.
        now_s: its predicted step in seconds; None if it cannot be predicted.
        best: another.
        margin: the share of `now_s` by which the other's step must be shorter.
        steps: the number of steps in the profile.
    """
    best_s = best.prediction.step_s
    since = f"After {pluralize(steps, 'step')}"
    if now_s is None or best_s is None:
        unknown = best.prediction.unknown or "the cluster profile lacks what the current plan needs"
        return Comparison(None, f"{since} the plan stays: {unknown}.\n")
    changed = places_text(now, best)
    if not changed:
        return Comparison(None, f"{since} the plan stays: it is still the best for the rows that they touched.\n")
    gain = 1 - best_s / now_s if now_s > 0 else 0.0
    compared = f"{ms_text(now_s)} a step are predicted for the current plan, {ms_text(best_s)} of another"
    if gain < margin:
        return Comparison(
            None, f"{since} the plan stays: {compared}, {_percent(gain)} less, below {_percent(margin)}.\n"
        )
    return Comparison(best, f"{since}: {compared}, {_percent(gain)} less:\n{changed}")


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"
