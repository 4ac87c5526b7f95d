"""Tries one program after the other, saves the faults, and prints the counts."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.exactness.children import Trials, run_trials
from ops.exactness.draft import Program
from ops.exactness.shrink import shrink_program
from ops.exactness.trial import Outcome, try_program

SHRUNK_ALIKE = 2
"""Number of similar faults that are shrunk; the others are only counted."""
FEW = 100
"""Up to so many graphs are tried by every route by default, more graphs by one route each."""
NUMBERED = 4
"""Number of graphs that are listed for each reason of a refusal, and each note."""
_SHOWN, _TOLD_EVERY = 240, 500


@dataclass
class Tally:
    """The outcomes of the programs so far.

    Attributes:
        outcomes: number of graphs of each kind; a graph with several routes counts once, as its worst.
        trials: number of pairs of graph and route.
        reasons: reason of refusals -> numbers of the graphs.
        faults: (number, route, outcome).
        seconds: of processor time.
        noted: number of equal graphs whose plans have notes.
        notes: note of equal graphs -> numbers of the graphs.
        differences: note of graphs that differ from one process, and are told to -> numbers of the graphs.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    trials: int = 0
    reasons: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    faults: list[tuple[int, str, Outcome]] = field(default_factory=list)
    seconds: float = 0.0
    noted: int = 0
    notes: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    differences: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def add(self, number: int, outcomes: dict[str, Outcome]) -> list[tuple[str, Outcome]]:
        """Counts a graph; returns its faults by route."""
        kinds = [outcome.kind for outcome in outcomes.values()]
        self.outcomes[max(kinds, key=_ORDER.index)] += 1
        self.trials += len(kinds)
        is_equal = all(outcome.kind == "equal" for outcome in outcomes.values())
        notes = [note for outcome in outcomes.values() for note in outcome.notes if is_equal]
        self.noted += bool(notes)
        for text in {_without_names(note): None for note in notes}:
            self.notes[text].append(number)
        told = [note for outcome in outcomes.values() for note in outcome.notes if outcome.kind == "told"]
        for text in {_without_names(note): None for note in told}:
            self.differences[text].append(number)
        self.seconds += sum(outcome.seconds for outcome in outcomes.values())
        refused = [outcome for outcome in outcomes.values() if outcome.kind == "refused"]
        for reason in {reason_of(outcome): None for outcome in refused}:
            self.reasons[reason].append(number)
        faults = [(route, outcome) for route, outcome in outcomes.items() if outcome.is_fault]
        self.faults += [(number, route, outcome) for route, outcome in faults]
        return faults

    def counts(self) -> str:
        """Returns the number of graphs of each kind, as text."""
        counts = ", ".join(f"{self.outcomes[kind]} {kind}" for kind in _ORDER)
        return f"{sum(self.outcomes.values())} graphs, {self.trials} trials: {counts}"

    def text(self) -> str:
        """Returns the counts, the share refused with its reasons, and the time, as text."""
        graphs = sum(self.outcomes.values())
        lines = [self.counts()]
        lines.append(f"{self.outcomes['refused'] / max(graphs, 1):.1%} refused")
        lines += _list_kinds(self.reasons)
        lines.append(f"{self.noted} equal, with notes")
        lines += _list_kinds(self.notes)
        lines.append(f"{self.outcomes['told']} told")
        lines += _list_kinds(self.differences)
        lines.append(f"{self.seconds / max(graphs, 1):.2f} s of processor time per graph")
        return "\n".join(lines)


_ORDER = ("equal", "infinite", "unstable", "refused", "told", "unproven", "wrong", "foreign", "invalid")


def _list_kinds(trials_by_text: dict[str, list[int]]) -> list[str]:
    return [
        f"  {len(numbers):4}  {text}: {', '.join(map(str, numbers[:NUMBERED]))}"
        for text, numbers in sorted(trials_by_text.items(), key=lambda item: -len(item[1]))
    ]


def reason_of(outcome: Outcome) -> str:
    """Returns the message of a refusal without the names of its graph."""
    return f"{_without_names(outcome.message.split(': ', 1)[-1])} ({outcome.place})"


def _without_names(text: str) -> str:
    for quoted in _quoted(text):
        text = text.replace(quoted, "'\u2026'")
    return text[:_SHOWN]


def run(options: Any) -> int:
    """Runs the command; returns its exit status."""
    if options.script is not None:
        return _script(options)
    until = time.time() + 60 * options.minutes if options.minutes is not None else math.inf
    numbers = [options.only] if options.only is not None else range(options.first, options.first + options.graphs)
    routes = options.routes or ("all" if len(numbers) <= FEW else "one")
    trials, tally = Trials(options.seed, options.workers, routes, options.claims, options.layouts), Tally()
    if options.only is not None:
        print(trials.program(options.only).source())
    for number, outcomes in run_trials(trials, numbers, options.processes, until):
        for route, outcome in tally.add(number, outcomes):
            print(f"{number} by {route}: {_line(outcome)}", flush=True)
        if options.only is not None:
            _print(outcomes)
        if sum(tally.outcomes.values()) % _TOLD_EVERY == 0:
            print(tally.counts(), flush=True)
    if options.out is not None:
        _keep_all(tally, trials, options.out)
    print(tally.text())
    return 1 if tally.faults else 0


def _script(options: Any) -> int:
    outcomes = try_program(
        options.script.read_text(),
        Trials(0, None, options.routes or "all", False).routes_of(0),
        claims=options.claims,
        layouts=options.layouts,
    )
    _print(outcomes)
    return 1 if any(outcome.is_fault for outcome in outcomes.values()) else 0


def _print(outcomes: dict[str, Outcome]) -> None:
    for route, outcome in outcomes.items():
        print(f"{route}: {outcome.kind}  {outcome.message}\n  " + "\n  ".join(outcome.routes))
        if outcome.claim:
            print(f"  first false claim: {outcome.claim}")


def _keep_all(tally: Tally, trials: Trials, folder: Path) -> None:
    """Writes minimal programs of faults, but only a few of similar faults or of one program's faults."""
    kept: Counter[tuple[str, str]] = Counter()
    numbers: set[tuple[int, str, str]] = set()
    for number, route, outcome in tally.faults:
        look = (outcome.kind, outcome.place)
        if not route or (number, *look) in numbers or (outcome.kind == "foreign" and kept[look] >= SHRUNK_ALIKE):
            continue
        kept[look] += 1
        numbers.add((number, *look))
        _keep(trials.program(number), (number, route, outcome), trials, folder)


def _keep(made: Program, fault: tuple[int, str, Outcome], trials: Trials, folder: Path) -> None:
    number, route, outcome = fault
    least, outcome = shrink_program(made, outcome, lambda one: _first(_try_route(one, route, trials)))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{outcome.kind}_{number}_{route}.py"
    how = f"Run by `python -m ops.exactness --routes {route} --script {file.name}`.\n\n{_wrapped(outcome)}"
    file.write_text(least.source(how.replace("\\", "/").replace('"""', "'''")))
    print(f"  {file}: {_line(outcome)}", flush=True)


def _try_route(one: Program, route: str, trials: Trials) -> dict[str, Outcome]:
    return try_program(one.source(), [route], claims=trials.claims, layouts=trials.layouts)


def _first(outcomes: dict[str, Outcome]) -> Outcome:
    return next(iter(outcomes.values()))


def _line(outcome: Outcome) -> str:
    claim = f"  first false claim: {outcome.claim}" if outcome.claim else ""
    return f"{outcome.kind}  {outcome.place}  {' '.join(outcome.message.split())[:_SHOWN]}{claim}"


def _wrapped(outcome: Outcome) -> str:
    text = " ".join(f"{outcome.kind}: {outcome.message[:600]} ({outcome.place or 'values'})".split())
    return "\n".join(text[at : at + 110] for at in range(0, len(text), 110))


def _quoted(text: str) -> list[str]:
    return [f"'{part}'" for part in text.split("'")[1::2]]
