"""The tables of a report as values: rows, columns and notes, independent of the output format.

A race has a sheet with a row per system. A family of races that differ in the number of hosts only has one more, with
the throughputs and their growth.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ops.bench.race.results import Race, Ran, Results
from ops.bench.race.scaling import (
    FORMULA,
    bound_per_s,
    families,
    growths,
    host_pairs,
    systems,
    units_per_s,
)

NONE = "-"
"""A cell without a figure. A column of such cells only is left out."""
_PROBLEM_CHARACTERS = 300

Differences = Sequence[Mapping[str, float]]
"""For each race, system -> largest difference of its losses from the reference's; may be empty."""


@dataclass(frozen=True, slots=True)
class Row:
    """A system's row: its figures, or the reason why there are none."""

    name: str
    cells: tuple[str, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table.

    Attributes:
        title: the title.
        above: lines above the table.
        columns: headings; the first is for the rows' names, and each row has cells for the others.
        rows: in the order of the systems.
        notes: lines that explain the columns.
    """

    title: str
    above: tuple[str, ...]
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]


def sheets(results: Results, differences: Differences = ()) -> tuple[tuple[Sheet, ...], ...]:
    """Returns for each family of races a sheet per race, and one for their scaling if there are several races.

    Raises:
        ValueError: differences are given, but not for every race.
    """
    if differences and len(differences) != len(results.races):
        raise ValueError(
            f"Loss differences must be given for every race: there are {len(results.races)} races, "
            f"and differences for {len(differences)}."
        )
    sheet_groups = []
    for family in families(results.races):
        races = [results.races[index] for index in family]
        of_races = [race_sheet(results.races[index], differences[index] if differences else {}) for index in family]
        sheet_groups.append((*of_races, scaling_sheet(races)) if len(races) > 1 else tuple(of_races))
    return tuple(sheet_groups)


def notes(tables: Sequence[Sheet]) -> tuple[str, ...]:
    """Returns the notes of all sheets, without duplicates."""
    return tuple(dict.fromkeys(line for sheet in tables for line in sheet.notes))


def race_sheet(race: Race, differences: Mapping[str, float]) -> Sheet:
    """Returns the sheet of a race, with a row per system."""
    ours = first_of_ours(race)
    columns: dict[str, Callable[[Ran], str]] = {
        "median step": lambda run: _ms(run.step_s),
        "undilated": lambda run: _ms(run.step_s / race.dilation) if race.device_s else NONE,
        "min-max": _spread,
        f"{race.unit}/s": lambda run: _whole(race.units / run.step_s * race.dilation),
        "x slower": lambda run: _ratio(run.step_s, ours.step_s if ours else 0.0),
        "x bound": lambda run: _ratio(run.step_s, max(race.wire_s, race.computing_s)),
        "x shortest": lambda run: _ratio(run.step_s, race.shortest_of(run.system)),
        "wire bytes": lambda run: _bytes(run.wire_bytes),
        "x least": lambda run: _ratio(run.wire_bytes, race.least_bytes),
        "wire time": lambda run: _ms(_wire_s(race, run)),
        "binds": lambda run: _binds(_wire_s(race, run), race.computing_s),
        "CPU s": lambda run: f"{statistics.median(turn.cpu_s / turn.steps for turn in run.turns):.3g}",
        "switches": lambda run: _switches(race, run),
        "of cores": lambda run: _share(race, run),
        "peak": lambda run: _bytes(max(run.peak_bytes, default=0)),
        "sum of peaks": lambda run: _bytes(sum(run.peak_bytes)),
        "loss diff": lambda run: _difference(run, differences),
        "rounds": lambda run: str(len(run.turns)),
    }
    rows = []
    for run in race.runs:
        problem = problem_of(run)
        cells = () if problem else tuple(cell(run) for cell in columns.values())
        rows.append(Row(run.system, cells, problem))
    sheet = Sheet(_title(race), _bounds(race), ("system", *columns), tuple(rows), ())
    return _explained(_without_empty_columns(sheet), ours)


def scaling_sheet(races: Sequence[Race]) -> Sheet:
    """Returns the sheet of a family: throughput by hosts, and growth relative to the bound; races are in host order."""
    pairs = host_pairs(len(races))
    columns = ["system", *(f"{race.hosts} hosts" for race in races)]
    columns += [f"{races[a].hosts} to {races[b].hosts}" for a, b in pairs]
    rows = []
    for system in systems(races):
        done = [_done(race, system) for race in races]
        shares = [NONE if g is None else f"{g.efficiency:.2f}" for g in growths(races, system)]
        rows.append(Row(system, (*done, *shares)))
    bounds = [bound_per_s(race) for race in races]
    if any(bounds):
        cells = [NONE if bound is None else _whole(bound) for bound in bounds]
        rows.append(Row("what the bytes allow", (*cells, *(NONE for _ in pairs))))
    title = f"{races[0].model}, {races[0].unit}/s by hosts"
    explained = (f"H1 to H2: growth of the throughput T over that of the bound B, {FORMULA}",) if any(bounds) else ()
    sheet = Sheet(title, (), tuple(columns), tuple(rows), explained)
    return _without_empty_columns(sheet)


def first_of_ours(race: Race) -> Ran | None:
    """Returns the run that others are compared with: the first of Parallax that did not fail."""
    return next((run for run in race.runs if run.system.startswith("parallax") and not problem_of(run)), None)


def problem_of(run: Ran) -> str:
    """Returns on one line why a run has no figures; empty if it has."""
    if not run.problem:
        return "" if run.turns else "no round was measured"
    text = " ".join(run.problem.split())
    return text if len(text) <= _PROBLEM_CHARACTERS else text[: _PROBLEM_CHARACTERS - 4] + " ..."


def rate_text(bytes_per_s: float) -> str:
    """Formats a link's rate in bits per second."""
    if not bytes_per_s:
        return "links not limited"
    bits = 8 * bytes_per_s
    return f"{bits / 1e9:.4g} Gbit/s" if bits >= 1e9 else f"{bits / 1e6:.4g} Mbit/s"


def heading(race: Race) -> str:
    """Returns model, hosts and rate of a race."""
    hosts = f"{race.hosts} host{'s' if race.hosts != 1 else ''}"
    each = f"{race.workers} worker{'s' if race.workers != 1 else ''}"
    return f"{race.model}, {hosts} x {each}, {rate_text(race.rate_bytes_per_s)}"


def _done(race: Race, system: str) -> str:
    rate = units_per_s(race, system)
    if rate is not None:
        return _whole(rate)
    return "failed" if any(run.system == system for run in race.runs) else NONE


def _title(race: Race) -> str:
    sizes = ", ".join(f"{name} {_setting(value)}" for name, value in race.settings)
    return f"{heading(race)} ({sizes})" if sizes else heading(race)


def _bounds(race: Race) -> tuple[str, ...]:
    lines = []
    if race.least_bytes:
        lines.append(f"least bytes: {_bytes(race.least_bytes)} a host and step, each way: {race.formula}")
    compute = f"compute time {_ms(race.computing_s)}"
    if race.device_s:
        lines.append(
            f"time is dilated {race.dilation:g} times: compute time is that of the accelerator, {_ms(race.device_s)} "
            f"for {_ms(race.device_s / race.dilation)}; a step without any exchange took {_ms(race.compute_s)}"
        )
    if race.wire_s:
        binds = _binds(race.wire_s, race.computing_s)
        lines.append(f"wire time {_ms(race.wire_s)} (least bytes over rate), {compute}: {binds} binds")
    else:
        lines.append(f"{compute}; wire time is unknown, as links have no limit or carry no bytes")
    if race.shortest_s:
        lines.append(
            f"shortest step, if each link and accelerator does one thing at a time in the order of the graph: "
            f"{_ms(race.shortest_s)} alone, {_ms(race.overlapping_s)} if steps overlap"
        )
    return tuple(lines)


def _explained(sheet: Sheet, ours: Ran | None) -> Sheet:
    """Returns the sheet with a note for each column that needs one."""
    words = {
        "undilated": "undilated: median step over the dilation; throughputs are undilated too",
        "x slower": f"x slower: median step over that of {ours.system}" if ours else "",
        "x bound": "x bound: median step over the larger of wire time (least bytes) and compute time",
        "x shortest": "x shortest: median step over the shortest one that the exchanges and layers of Parallax's plan "
        "allow: of a step alone or, for parallax-overlap, of steps that overlap",
        "wire bytes": "wire bytes: per step, in the busiest direction of the busiest host's link; "
        "x least: over the least bytes",
        "binds": "binds: the larger of wire time (these bytes over rate) and compute time",
        "CPU s": "CPU s: per step, of all processes; peak: largest peak RSS of a process; sum of peaks: of all",
        "switches": "switches: context switches of threads, per step and host",
        "of cores": "of cores: CPU s over the time of all cores in a median step",
        "loss diff": "loss diff: largest difference of a step's loss from the others'",
    }
    notes_of = tuple(text for column, text in words.items() if text and column in sheet.columns)
    return Sheet(sheet.title, sheet.above, sheet.columns, sheet.rows, notes_of)


def _switches(race: Race, run: Ran) -> str:
    of_step = statistics.median(turn.switches / turn.steps for turn in run.turns)
    return _whole(of_step / race.hosts) if of_step else NONE


def _without_empty_columns(sheet: Sheet) -> Sheet:
    full = [row for row in sheet.rows if not row.problem]
    if not full:
        return sheet
    kept = [i for i in range(len(sheet.columns) - 1) if any(row.cells[i] != NONE for row in full)]
    rows = tuple(row if row.problem else Row(row.name, tuple(row.cells[i] for i in kept)) for row in sheet.rows)
    columns = (sheet.columns[0], *(sheet.columns[i + 1] for i in kept))
    return Sheet(sheet.title, sheet.above, columns, rows, sheet.notes)


def _wire_s(race: Race, run: Ran) -> float:
    """Returns a run's wire time; 0 without a rate, or without a lab to count the bytes."""
    return run.wire_bytes / race.rate_bytes_per_s if race.rate_bytes_per_s else 0.0


def _binds(wire_s: float, compute_s: float) -> str:
    if not wire_s or not compute_s:
        return NONE
    return "wire" if wire_s >= compute_s else "compute"


def _difference(run: Ran, differences: Mapping[str, float]) -> str:
    if not run.synchronous and differences:
        return "not compared"
    if run.system not in differences:
        return NONE
    return f"{differences[run.system]:.1e}" if differences[run.system] else "0"


def _share(race: Race, run: Ran) -> str:
    if not race.cores:
        return NONE
    used = statistics.median(turn.cpu_s / (turn.seconds * race.cores) for turn in run.turns)
    return f"{100 * used:.0f} %"


def _spread(run: Ran) -> str:
    steps = [turn.step_s for turn in run.turns]
    return f"{_digits(1000 * min(steps))}-{_digits(1000 * max(steps))}"


def _ratio(value: float, of: float) -> str:
    return f"{value / of:.2f}" if value and of else NONE


def _ms(seconds: float) -> str:
    return f"{_digits(1000 * seconds)} ms" if seconds else NONE


def _digits(value: float) -> str:
    """Formats three digits or more, without an exponent."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bytes(count: float) -> str:
    """Formats bytes in decimal units, as is usual for links."""
    if not count:
        return NONE
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{_digits(count / size)} {unit}"
    return f"{count:.0f} B"


def _setting(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return f"{value:,}"
