"""Formats the table of a comparison: differing and noisy arrays by name; equal ones too or, if many, by kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from parallax.report.text import in_columns, pluralize
from parallax.runtime.verify.island_processes import MET, UNMET
from parallax.runtime.verify.verdicts import ArrayVerdict, Verdict

FOLDED_FROM = 40
"""The number of arrays from which equal ones are summarised by kind."""

_HEADER = ("variable", "kind", "error/change", "allowed", "verdict")


def table_text(judged: Sequence[ArrayVerdict], local_names: Sequence[str]) -> str:
    """The arrays, one per line.

    Args:
        judged: their verdicts.
        local_names: the per-worker variables.
    """
    folds = len(judged) >= FOLDED_FROM
    shown = [one for one in judged if not folds or one.verdict != Verdict.EQUAL]
    rows: list[tuple[str, ...]] = [_HEADER]
    rows += [(one.name, one.kind, _number(one.error), _number(one.allowed), _verdict(one)) for one in shown]
    if folds:
        rows += _by_kind([one for one in judged if one.verdict == Verdict.EQUAL])
    rows += [(name, "own", "", "", "not compared: every worker keeps its own") for name in sorted(local_names)]
    return "\n".join(in_columns(rows)) + "\n"


def join_islands(
    judged: Mapping[tuple[str, int], Sequence[ArrayVerdict]], workers: int
) -> tuple[list[ArrayVerdict], str]:
    """Joins the verdicts of islands.

    Args:
        judged: by moment and island, UNMET first.
        workers: of an island.

    Returns:
        For each array the worst of its verdicts, with the rank of the worker; and which islands differ, and when.
    """
    worst: dict[str, ArrayVerdict] = {}
    for (_, island), arrays in judged.items():
        for one in arrays:
            of_all = replace(one, worker=island * workers + one.worker)
            known = worst.setdefault(one.name, of_all)
            if _badness(of_all) > _badness(known):
                worst[one.name] = of_all
    wrong = {
        moment: [str(i) for (when, i), arrays in judged.items() if when == moment and any(map(is_wrong, arrays))]
        for moment in (UNMET, MET)
    }
    text = ""
    if wrong[UNMET]:
        text = f"Not equal to its process before the first meeting: island {', '.join(wrong[UNMET])}\n"
    elif wrong[MET]:
        text = f"Equal before the first meeting; not equal after the last: island {', '.join(wrong[MET])}\n"
    return sorted(worst.values(), key=lambda one: one.name), text


def verdict_text(judged: Sequence[ArrayVerdict], sides: str, steps: int, tolerance: float) -> str:
    """The last line: whether all are equal, and the arrays that could not be judged.

    Args:
        judged: the verdicts.
        sides: what is compared.
        steps: how many there were.
        tolerance: the allowed error relative to a change.
    """
    wrong = [one for one in judged if is_wrong(one)]
    noise = [one for one in judged if one.verdict == Verdict.NOISE]
    equal = [one for one in judged if one.verdict == Verdict.EQUAL]
    worst = max((one.error for one in wrong or equal), default=0.0)
    verdict = "NOT equal" if wrong else "equal" if equal else "NOT comparable"
    text = f"{sides} are {verdict} after {pluralize(steps, 'step')}: "
    if wrong:
        text += f"{len(wrong)} of {len(judged)} variables differ, "
    if noise:
        text += (
            f"{len(noise)} of {len(judged)} {'is' if len(noise) == 1 else 'are'} rounding noise in one process too, "
        )
    return f"{text}largest error {worst:.2e} of a change, tolerance {tolerance:.0e}\n"


def is_wrong(one: ArrayVerdict) -> bool:
    """Whether an array differs from the one process's."""
    return one.verdict in (Verdict.DIFFERENT, Verdict.APART)


def status(judged: Sequence[ArrayVerdict]) -> int:
    """The exit status: 0 if no array is wrong and at least one could be compared."""
    wrong = any(is_wrong(one) for one in judged)
    return 1 if wrong or all(one.verdict == Verdict.NOISE for one in judged) else 0


def _badness(one: ArrayVerdict) -> tuple[bool, bool, float]:
    return is_wrong(one), one.verdict == Verdict.NOISE, one.error


def _by_kind(equal: Sequence[ArrayVerdict]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for kind in dict.fromkeys(one.kind for one in equal):
        of_kind = [one for one in equal if one.kind == kind]
        worst = max(of_kind, key=lambda one: one.error)
        what = f"{len(of_kind)} others"
        rows.append((what, kind, _number(worst.error), _number(worst.allowed), f"equal; largest: {worst.name}"))
    return rows


def _verdict(one: ArrayVerdict) -> str:
    worker = f" (worker {one.worker})" if is_wrong(one) else ""
    return f"{one.verdict.value}{worker}"


def _number(value: float) -> str:
    return f"{value:.2e}"
