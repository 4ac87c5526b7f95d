"""The pictures of a report: bars of step time, and curves of throughput by hosts.

Each family of races has a row: bars for every number of hosts, with the lower bounds of step time. On the right are the
curves or, for a single number of hosts, bars of the bytes on the wire.
"""

from __future__ import annotations

import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ops.bench.race.report.sheets import heading, problem_of
from ops.bench.race.results import Race, Results, Turn
from ops.bench.race.scaling import bound_per_s, families, systems, units_per_s

WIDTH_PIXELS = 1400
_DPI = 100
_ROW_INCHES = 5.2
_MARKERS = "osD^vPX*<>hp"
# Parallax is blue, Horovod orange and red, servers green; a system has the same colour in every picture.
_COLOURS = {
    "parallax": "#0b4f9e",
    "horovod": "#f08a24",
    "horovod-dense": "#b8352a",
    "tf-ps": "#2e8b57",
    "tf-ps-async": "#93c572",
}
_MORE_OF_OURS = ("#56a5e0", "#7a5fc0", "#1fb5c4", "#a9b8dc", "#3d3a8c", "#6f8fb0")
_OTHERS = ("#8c564b", "#d783b8", "#8a8a8a", "#c7a600", "#4b4b4b")
_INK = "#333333"
_LINEAR_UP_TO = 12
"""The longest bar over the shortest; above this ratio, the shortest would merge with its bounds on a linear scale."""
_NARROW = 0.035
"""Share of the axes' width; figures of narrower bars are rotated."""
_LEGEND_CHARACTERS = 170
"""Characters per line of the legend, markers included."""


def write_png(results: Results, path: Path) -> None:
    """Writes one picture with all families of races, 1400 pixels wide.

    Args:
        results: the results; without a race, the picture says so.
        path: the PNG file.
    """
    from matplotlib.figure import Figure

    groups = [[results.races[index] for index in family] for family in families(results.races)]
    figure = Figure((WIDTH_PIXELS / _DPI, _ROW_INCHES * max(1, len(groups))), dpi=_DPI, layout="constrained")
    if not groups:
        figure.text(0.5, 0.5, "no race was run", ha="center", color=_INK)
    parts = figure.subfigures(max(1, len(groups)), 1, squeeze=False, hspace=0.04)
    for part, races in zip(parts[:, 0], groups, strict=False):
        _draw(part, races, colours(systems(results.races)))
    figure.savefig(path, format="png", metadata={"Software": None})


def family_svg(races: Sequence[Race], colour_by_system: dict[str, str]) -> str:
    """Returns the picture of one family as an SVG document, with letters as paths so that it needs no font."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "path", "svg.hashsalt": "race"}):
        figure = Figure((WIDTH_PIXELS / _DPI, _ROW_INCHES), dpi=_DPI, layout="constrained")
        _draw(figure, races, colour_by_system)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return text.getvalue()


def colours(names: Sequence[str]) -> dict[str, str]:
    """Returns a colour per system: known systems have fixed ones, others get the next free one."""
    ours, others = iter(_MORE_OF_OURS * len(names)), iter(_OTHERS * len(names))
    return {name: _COLOURS.get(name) or next(ours if name.startswith("parallax") else others) for name in names}


def _draw(figure: Any, races: Sequence[Race], colour_by_system: dict[str, str]) -> None:
    """Draws a family's row into a figure or a part of one."""
    counted = any(turn.wire_bytes for race in races for run in race.runs for turn in run.turns)
    several = len(races) > 1
    ratios = (8, 5) if several else (1, 1) if counted else (1,)
    left, *right = figure.subplots(1, len(ratios), width_ratios=ratios, squeeze=False)[0]
    _bars(left, races, colour_by_system, _STEP_TIME)
    if several:
        _curves(right[0], races, colour_by_system)
    elif counted:
        _bars(right[0], races, colour_by_system, _WIRE_BYTES)
    figure.suptitle(_title(races), fontsize=13, fontweight="bold", color=_INK)
    _legend(figure, (left, *right), list(colour_by_system))


def _legend(figure: Any, all_axes: Sequence[Any], names: list[str]) -> None:
    """Draws one legend for the whole row: the systems, then the bounds."""
    drawn: dict[str, Any] = {}
    for axes in all_axes:
        handles, labels = axes.get_legend_handles_labels()
        drawn |= dict(zip(labels, handles, strict=True))
    if not drawn:
        return
    labels = sorted(drawn, key=lambda label: names.index(label) if label in names else len(names))
    rows = -(-sum(len(label) + 8 for label in labels) // _LEGEND_CHARACTERS)
    handles = [drawn[label] for label in labels]
    figure.legend(handles, labels, loc="outside lower center", ncols=-(-len(labels) // rows), frameon=False)


def _title(races: Sequence[Race]) -> str:
    if len(races) == 1:
        return heading(races[0])
    hosts = ", ".join(str(race.hosts) for race in races[:-1])
    rest = heading(races[0]).partition(" x ")[2]
    return f"{races[0].model}, {hosts} and {races[-1].hosts} hosts x {rest}"


@dataclass(frozen=True, slots=True)
class _Measure:
    """A quantity that bars show.

    Attributes:
        title: title of the axes.
        unit: label of the y axis.
        of_turn: returns a round's value.
        bounds: line style -> label and function of a race's value; a value of 0 is not drawn.
    """

    title: str
    unit: str
    of_turn: Callable[[Turn], float]
    bounds: dict[str, tuple[str, Callable[[Race], float]]]


_STEP_TIME = _Measure(
    "Step time: median, whiskers from fastest to slowest round",
    "ms a step",
    lambda turn: 1000 * turn.step_s,
    {
        "-": ("wire bound (least bytes / rate)", lambda race: 1000 * race.wire_s),
        ":": ("compute bound", lambda race: 1000 * race.computing_s),
    },
)
_WIRE_BYTES = _Measure(
    "Bytes on the wire: busiest direction of a link",
    "MB a step",
    lambda turn: turn.wire_bytes / 1e6,
    {"--": ("least bytes", lambda race: race.least_bytes / 1e6)},
)


def _bars(axes: Any, races: Sequence[Race], colour_by_system: dict[str, str], measure: _Measure) -> None:
    """Draws a cluster of bars per race, with its bounds; the scale is logarithmic where bars would vanish."""
    names = systems(races)
    width = 0.84 / max(1, len(names))
    axes.set_xlim(-0.55, len(races) - 0.45)
    for place, race in enumerate(races):
        for number, name in enumerate(names):
            x = place + (number - (len(names) - 1) / 2) * width
            _bar(axes, race, name, (x, width), colour_by_system[name], measure)
        for style, (words, bound) in measure.bounds.items():
            if bound(race):
                ends = (place - 0.46, place + 0.46)
                axes.plot(ends, [bound(race)] * 2, color="white", lw=4, alpha=0.7)
                axes.plot(ends, [bound(race)] * 2, color="black", lw=1.7, ls=style, label=words)
    axes.set_xticks(range(len(races)), [f"{race.hosts} host{'s' if race.hosts != 1 else ''}" for race in races])
    axes.set_ylabel(measure.unit)
    kind = _scale(axes, races, measure)
    axes.set_title(f"{measure.title} ({kind}shorter is better)", fontsize=10.5)
    _plain(axes, "y")


def _scale(axes: Any, races: Sequence[Race], measure: _Measure) -> str:
    """Sets limits that leave room for the labels; returns `logarithmic, ` if the scale is."""
    bars = [measure.of_turn(t) for race in races for run in race.runs if not problem_of(run) for t in run.turns]
    bars = [value for value in bars if value > 0]
    bounds = [bound(race) for race in races for _, bound in measure.bounds.values() if bound(race)]
    if not bars or max(bars) < _LINEAR_UP_TO * min(bars):
        axes.set_ylim(0, 1.16 * max([*bars, *bounds], default=1.0))
        return ""
    axes.set_yscale("log")
    axes.set_ylim(0.5 * min(*bars, *bounds), 2.5 * max(*bars, *bounds))
    _ticks(axes)
    return "logarithmic, "


def _bar(axes: Any, race: Race, name: str, place: tuple[float, float], colour: str, measure: _Measure) -> None:
    """Draws one system's bar at `place`, (middle, width)."""
    run = next((run for run in race.runs if run.system == name), None)
    if run is None:
        return
    x, width = place
    if problem_of(run):
        where = axes.get_xaxis_transform()
        axes.text(x, 0.02, f"{name} failed", rotation=90, ha="center", va="bottom", fontsize=9, transform=where)
        return
    values = [measure.of_turn(turn) for turn in run.turns]
    middle = statistics.median(values)
    axes.bar(x, middle, 0.92 * width, color=colour, label=name)
    axes.errorbar(x, middle, [[middle - min(values)], [max(values) - middle]], color=_INK, capsize=3, lw=1.1)
    text = f"{middle:,.0f}" if middle >= 10 else f"{middle:.1f}" if middle >= 1 else f"{middle:.2g}"
    upright = 90 if width < _NARROW * (axes.get_xlim()[1] - axes.get_xlim()[0]) else 0
    above = {"xytext": (0, 3), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    axes.annotate(text, (x, max(values)), rotation=upright, fontsize=9, color=_INK, **above)


def _curves(axes: Any, races: Sequence[Race], colour_by_system: dict[str, str]) -> None:
    """Draws throughput by hosts on logarithmic axes: a system that scales as the bound does is parallel to it."""
    for number, name in enumerate(systems(races)):
        done = [(race.hosts, units_per_s(race, name)) for race in races]
        points = [(hosts, rate) for hosts, rate in done if rate is not None]
        if points:
            marker = _MARKERS[number % len(_MARKERS)]
            axes.plot(*zip(*points, strict=True), marker=marker, ms=7, lw=2, color=colour_by_system[name])
    bounds = [(race.hosts, bound_per_s(race)) for race in races if bound_per_s(race)]
    if bounds:
        axes.plot(*zip(*bounds, strict=True), color="black", lw=1.6, ls="--", label="what the bytes allow")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([race.hosts for race in races], [str(race.hosts) for race in races])
    _ticks(axes)
    axes.set_xlabel("hosts")
    axes.set_ylabel(f"{races[0].unit}/s, all workers")
    axes.set_title("Throughput by hosts (logarithmic, higher is better)", fontsize=10.5)
    _plain(axes, "both")


def _ticks(axes: Any) -> None:
    """Sets ticks with plain numbers at 1, 2 and 5 of each power of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:.2g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())


def _plain(axes: Any, grid: str) -> None:
    axes.grid(axis=grid, color="#dddddd", lw=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
