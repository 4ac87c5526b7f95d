"""Checks the claims of a verification: the one process takes each step from the workers' values, and both are compared.

A difference is allowed up to the larger of CLAIM_TOLERANCE and `verdicts.MARGIN` times the noise: how far the one
process, taken as the only worker, is from the claim when it starts with trained variables perturbed by a rounding. If
that is so much that one worker's part could be missing undetected (half of 1/W), the claim gets no verdict.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from parallax.base.types import Array, Graph, Value
from parallax.report.text import in_columns, list_first, pluralize
from parallax.runtime.supervisor.sealed_files import read_file_value, write_value
from parallax.runtime.verify.claim_records import KEPT_FILE, RESULT_FILE, START_FILE, ClaimGroups, save
from parallax.runtime.verify.claims import Claims, false_claim
from parallax.runtime.verify.one_process import STARTS, OneProcess
from parallax.runtime.worker.session.one_graph import place_of

CLAIM_TOLERANCE = 1e-3
"""Relative to a tensor's size, or to the size of a sum's terms: values that are small by cancellation are less exact
than a variable's change. A part that is missing, counted twice or another worker's is off by more than a tenth.
"""

HOLDS, UNCLEAR, FALSE = range(3)
_EXPECTED_FILE = "expected-{step}.npz"


@dataclass(frozen=True, slots=True)
class Margins:
    """Allowed errors, relative to a tensor's size and to its noise; and the perturbation that measures noise."""

    tolerance: float
    margin: float
    rounding: float


@dataclass(slots=True)
class Row:
    """The result of one kind of claim.

    Attributes:
        said: the claim.
        counts: how many tensors hold, have no verdict, and are false.
        largest: the largest difference of those with a verdict.
        tensor: that has it.
    """

    said: str
    counts: list[int]
    largest: float = 0.0
    tensor: str = ""


@dataclass(slots=True)
class Trials:
    """The results of all claims.

    Attributes:
        rows: by kind.
        steps: how many steps were taken.
        false: the first claim that is false, with its step and place; empty when all hold.
        unclaimed: the number of tensors without a claim.
        too_large: tensors that were left out for their size.
        waiting: how many tensors no step was left for.
        steps_needed: how many steps would suffice.
    """

    rows: list[Row]
    steps: int
    false: str
    unclaimed: int
    too_large: list[str]
    waiting: int
    steps_needed: int

    def write(self, folder: Path) -> None:
        """Saves them for the launcher."""
        write_value(folder / RESULT_FILE, asdict(self))

    @staticmethod
    def read(folder: Path) -> Trials:
        """Reads the saved results."""
        return read_file_value(folder / RESULT_FILE, Trials)

    def text(self) -> str:
        """The table, the tensors left out, and the verdict, for the user."""
        lines: list[tuple[str, ...]] = [("claim of a tensor", "hold", "unclear", "false", "largest error", "of")]
        for row in self.rows:
            lines.append((row.said, *map(str, row.counts), f"{row.largest:.1e}", row.tensor))
        text = in_columns(lines)
        if self.too_large:
            count, shown = pluralize(len(self.too_large), "tensor"), list_first(self.too_large)
            text.append(f"Not checked: {count} too large to keep ({shown}). Feed fewer rows to check all.")
        if self.waiting:
            count = pluralize(self.waiting, "tensor")
            text.append(f"Not checked: {count}, for lack of steps. Checking all takes --steps {self.steps_needed}.")
        false, unclear = (sum(row.counts[verdict] for row in self.rows) for verdict in (FALSE, UNCLEAR))
        checked = sum(sum(row.counts) for row in self.rows)
        if self.false:
            text.append(f"False claims: {false}; the first: {self.false}")
        else:
            hidden = f", {unclear} of them as far as rounding can tell" if unclear else ""
            text.append(
                f"No claim of {checked} is false in {pluralize(self.steps, 'step')}{hidden}; {self.unclaimed} other "
                "tensors have no claim"
            )
        return "\n".join(text) + "\n"


def evaluate_claims(
    one: OneProcess,
    claims: Claims,
    fetch: str,
    batches: Sequence[Mapping[str, Value]],
    folder: Path,
    size: int,
    margins: Margins,
    graph: Graph,
) -> None:
    """Checks the values that the workers have saved, and saves the result.

    Args:
        one: the one process, with function calls inlined.
        claims: the claims.
        fetch: the op that a step runs.
        batches: the global batch of each step.
        folder: of the job.
        size: how many workers.
        margins: the allowed errors.
        graph: the user's.
    """
    groups, steps = ClaimGroups.read(folder), range(len(batches))
    fetches_by_step = [[fetch, *groups.of(step)] for step in steps]
    for step, values in enumerate(one.each_step(fetches_by_step, batches, _starts(folder, len(steps)))):
        save(folder / _EXPECTED_FILE.format(step=step), dict(zip(fetches_by_step[step][1:], values[1:], strict=True)))
    noise: dict[tuple[int, str], float] = {}
    for draw in range(STARTS):
        moved = one.each_step(fetches_by_step, batches, _starts(folder, len(steps)), (margins.rounding, draw))
        for step, values in enumerate(moved):
            _add_perturbed(noise, claims, step, folder, dict(zip(fetches_by_step[step][1:], values[1:], strict=True)))
    verdicts, false = _compute_verdicts(claims, noise, folder, len(steps), size, margins, graph)
    checked_steps = len(groups.groups[: len(steps)])
    Trials(
        rows=_rows(verdicts),
        steps=len(steps),
        false=false,
        unclaimed=groups.unclaimed,
        too_large=list(groups.too_large),
        waiting=sum(map(len, groups.groups[checked_steps:])),
        steps_needed=len(groups.groups),
    ).write(folder)


def _starts(folder: Path, steps: int) -> Iterator[Mapping[str, Array]]:
    for step in range(steps):
        with np.load(folder / START_FILE.format(step=step)) as values:
            yield values


def _add_perturbed(
    noise: dict[tuple[int, str], float], claims: Claims, step: int, folder: Path, moved: dict[str, Value]
) -> None:
    """Adds the one process's own difference when it starts from perturbed values."""
    with np.load(folder / _EXPECTED_FILE.format(step=step)) as expected:
        for tensor in moved:
            checked = claims.check_claim(tensor, expected[tensor], [moved])
            if checked is not None:
                noise[step, tensor] = max(noise.get((step, tensor), 0.0), checked.gap)


@dataclass(slots=True)
class _Verdict:
    statement: str
    verdict: int = HOLDS
    largest: float = 0.0


def _compute_verdicts(
    claims: Claims,
    noise: dict[tuple[int, str], float],
    folder: Path,
    steps: int,
    size: int,
    margins: Margins,
    graph: Graph,
) -> tuple[dict[str, _Verdict], str]:
    """By tensor the worst result of all steps; and the first false claim, as text."""
    verdicts: dict[str, _Verdict] = {}
    false = ""
    for step in range(steps):
        with contextlib.ExitStack() as stack:
            files = [KEPT_FILE.format(rank=rank, step=step) for rank in range(size)]
            names = (_EXPECTED_FILE.format(step=step), *files)
            expected, *found = (stack.enter_context(np.load(folder / name)) for name in names)
            for tensor in expected:
                checked = claims.check_claim(tensor, expected[tensor], found)
                if checked is None:
                    continue
                of_noise = margins.margin * noise.get((step, tensor), 0.0)
                verdict = _verdict(checked.gap, margins.tolerance, of_noise, size)
                if verdict == FALSE and not false:
                    place = place_in(graph, tensor)
                    false_one = false_claim(claims, tensor, checked)
                    false = f"step {step + 1}, {false_one}{f' ({place})' if place else ''}"
                one = verdicts.setdefault(tensor, _Verdict(checked.statement))
                one.verdict = max(one.verdict, verdict)
                one.largest = max(one.largest, checked.gap) if verdict != UNCLEAR else one.largest
    return verdicts, false


def _verdict(gap: float, tolerance: float, of_noise: float, size: int) -> int:
    if not gap <= max(tolerance, of_noise):
        return FALSE
    return UNCLEAR if gap > tolerance and of_noise > 1 / (2 * size) else HOLDS


def _rows(verdicts: dict[str, _Verdict]) -> list[Row]:
    rows: dict[str, Row] = {}
    for tensor, one in verdicts.items():
        row = rows.setdefault(one.statement, Row(one.statement, [0, 0, 0]))
        row.counts[one.verdict] += 1
        if one.largest > row.largest:
            row.largest, row.tensor = one.largest, tensor
    return list(rows.values())


def place_in(graph: Graph, tensor: str) -> str:
    """The script's line that makes an op, or calls its function; for an op of autodiff, the op it differentiates.

    Args:
        graph: the user's.
        tensor: of the graph with inlined calls, where an op of a function has the call's name as a prefix.
    """
    name = tensor.rpartition(":")[0]
    while name:
        with contextlib.suppress(KeyError):
            op = graph.get_operation_by_name(name)
            of = getattr(op, "_original_op", None)
            forward = f"; of the gradient of {of.name!r}, {place_of(of)}" if of is not None else ""
            return f"{place_of(op)}{forward}"
        name = name.rpartition("/")[0]
    return ""
