"""Formats a simulation as text and as a page: a table of sizes, scaling of step and throughput, and balance points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from markupsafe import Markup

from parallax.plans.what_if import Simulation, Size
from parallax.report.html.page import figures_line, html_page, section
from parallax.report.html.svg import COLOUR_BY_ROUTE, FAINT, NONE, PALE, legend, line, powers, rect, svg, text, ticks
from parallax.report.html.table import make_list
from parallax.report.text import align, bytes_text, ms_text, pluralize

_COLUMNS = ("hosts", "workers", "step", "batches/s", "efficiency", "memory/host", "sent/worker", "routes")
_BALANCE = ("layer", "size", "compute", "all-reduce alone", "balance point")
_SHOWN_LAYERS = 20
_WIDTH = 1100.0
_COMPUTE = "#c9d6df"
_EXCHANGES = ("#8c8c8c", "#8fc1e3", "#4d94cf", "#1f5fa8", "#a6c48a", "#d98324", "#8257ad")


def simulation_text(simulation: Simulation) -> str:
    """The output of `parallax simulate`."""
    lines = [f"Simulation of graph {simulation.graph[:12]}: the best plan for each number of hosts"]
    if not any(used.kind == "cluster" for used in simulation.profiles):
        lines.append("No links were measured: steps take at least this, and efficiency is unknown; see the first note.")
    lines += align(_COLUMNS, [_cells(size) for size in simulation.sizes])
    for before, size in zip(simulation.sizes, simulation.sizes[1:], strict=False):
        lines.append(f"From {before.hosts} to {pluralize(size.hosts, 'host')}: {'; '.join(size.changes) or _SAME}.")
    if simulation.balances:
        workers = simulation.sizes[-1].workers
        lines += ["", f"Gradients of dense layers against their compute, all-reduce at {pluralize(workers, 'worker')}:"]
        lines += align(_BALANCE, _balances(simulation))
        lines += [_BALANCE_WORDS]
    return "\n".join([*lines, "", *(f"note: {words}" for words in simulation.assumptions)]) + "\n"


_SAME = "the same routes"
_BALANCE_WORDS = (
    "From the balance point on the all-reduce of a layer's gradient takes longer than its compute (after Das et al. "
    "2016). Compute is shared out by elements, which puts the point of convolutions too near."
)


def simulation_page(simulation: Simulation) -> str:
    """The predictions as one self-contained HTML page."""
    sizes = simulation.sizes
    title = f"Simulation of {', '.join(str(size.hosts) for size in sizes)} hosts"
    used = " and ".join(f"{p.kind} profile {p.name or p.fingerprint[:12]}" for p in simulation.profiles)
    largest = sizes[-1]
    head = [
        ("largest size", f"{pluralize(largest.hosts, 'host')}, {pluralize(largest.workers, 'worker')}"),
        ("predicted step there" if largest.throughput else "exchanges of a step there", ms_text(largest.step_s)),
        ("efficiency there", _percent(largest.efficiency)),
        ("memory of a host there", bytes_text(largest.memory_bytes)),
    ]
    changes = [
        f"From {a.hosts} to {b.hosts} hosts: {'; '.join(b.changes) or _SAME}."
        for a, b in zip(sizes, sizes[1:], strict=False)
    ]
    parts = [
        Markup("<h1>{}</h1>").format(title),
        Markup('<p class="faint">Graph {}; {}.</p>').format(simulation.graph[:12], used or "no profile"),
        figures_line(head),
        Markup("<h2>Sizes</h2>"),
        _table("sizes", _COLUMNS, [_cells(size) for size in sizes]),
        make_list(changes),
        section("Throughput", throughput_svg(sizes), "Both axes by powers; linear from the smallest size."),
        section("The step", steps_svg(sizes), "Phases in their order, without what compute hides of them."),
        section("Routes", routes_svg(sizes), "Variables by route, in the best plan for each number of hosts."),
    ]
    if simulation.balances:
        workers = pluralize(largest.workers, "worker")
        parts += [
            Markup("<h2>Dense layers: gradients against compute, at {}</h2>").format(workers),
            _table("balances", _BALANCE, _balances(simulation)),
            Markup('<p class="faint">{}</p>').format(_BALANCE_WORDS),
        ]
    parts += [Markup("<h2>What this rests on</h2>"), make_list(simulation.assumptions)]
    return html_page(title, parts)


def throughput_svg(sizes: Sequence[Size]) -> Markup:
    """Predicted and linear throughput by workers, both axes logarithmic; empty if known for fewer than two sizes."""
    known = [(size.workers, size.throughput) for size in sizes if size.throughput is not None]
    if len(known) < 2:
        return NONE
    first_workers, first = known[0]
    linear = [(workers, first * workers / first_workers) for workers, _ in known]
    left, right, top, bottom = 90.0, 130.0, 26.0, 300.0
    low, high = min(t for _, t in known) / 1.3, max(t for _, t in (*known, *linear)) * 1.3

    def x(workers: float) -> float:
        span = math.log(known[-1][0] / first_workers)
        return left + (_WIDTH - left - right) * math.log(workers / first_workers) / span

    def y(throughput: float) -> float:
        return bottom - (bottom - top) * math.log(throughput / low) / math.log(high / low)

    parts = [legend(left, 14, [("predicted", "#2f6db5"), ("linear", FAINT)])]
    for value in powers(low, high):
        parts += [line(left, y(value), _WIDTH - right, y(value), PALE)]
        parts += [text(left - 8, y(value) + 4, f"{value:,g}/s", "end", FAINT, 11)]
    for size in sizes:
        if size.throughput is not None:
            parts += [line(x(size.workers), top, x(size.workers), bottom, PALE)]
            words = f"{size.hosts} hosts" if size.workers == size.hosts else f"{size.hosts} hosts, {size.workers}"
            parts += [text(x(size.workers), bottom + 16, words, "middle", FAINT, 11)]
    parts.append(_curve([(x(w), y(t)) for w, t in linear], FAINT, Markup(' stroke-dasharray="5 4"')))
    parts.append(_curve([(x(w), y(t)) for w, t in known], "#2f6db5"))
    for size in sizes:
        if size.throughput is not None:
            place = x(size.workers), y(size.throughput)
            circle = Markup(
                '<circle class="size" cx="{:.2f}" cy="{:.2f}" r="4" fill="#2f6db5"><title>{}</title></circle>'
            )
            parts.append(circle.format(*place, f"{_count(size.throughput)} batches a second"))
            parts.append(text(place[0] + 8, place[1] + 15, f"{_count(size.throughput)}/s, {_percent(size.efficiency)}"))
    return svg(_WIDTH, bottom + 26, "throughput", "Throughput by number of hosts", parts)


def steps_svg(sizes: Sequence[Size]) -> Markup:
    """A bar for each size, composed of the phases of its step; empty if no step is known."""
    names = list(dict.fromkeys(phase.name for size in sizes for phase in size.phases))
    most = max((size.step_s or 0.0 for size in sizes), default=0.0)
    if not most > 0:
        return NONE
    fills = itertools.cycle(_EXCHANGES)
    colour = {name: _COMPUTE if name == "compute" else next(fills) for name in names}
    left, right, top = 90.0, 120.0, 22.0 + 18 * math.ceil(len(names) / 4)
    bottom = top + 34 * len(sizes)
    scale = (_WIDTH - left - right) / most
    parts = [
        legend(4 + 260 * (number % 4), 14 + 18 * (number // 4), [(name, colour[name])])
        for number, name in enumerate(names)
    ]
    for value in ticks(1e3 * most):
        at = left + scale * value / 1e3
        parts += [line(at, top - 6, at, bottom, PALE), text(at, bottom + 16, f"{value:g} ms", "middle", FAINT, 11)]
    for number, size in enumerate(sizes):
        y, end_s = top + 34 * number, 0.0
        parts.append(text(left - 8, y + 17, pluralize(size.hosts, "host"), "end"))
        for phase in size.phases:
            start_s, end_s = max(end_s, phase.start_s), max(end_s, phase.end_s)
            if end_s > start_s:
                tip = f"{phase.name}: {ms_text(phase.end_s - phase.start_s)}"
                width = scale * (end_s - start_s)
                parts.append(
                    rect(left + scale * start_s, y, width, 24, colour[phase.name], tip, Markup(' class="phase"'))
                )
        parts.append(text(left + scale * (size.step_s or 0.0) + 8, y + 17, ms_text(size.step_s)))
    return svg(_WIDTH, bottom + 24, "steps", "The predicted step by number of hosts", parts)


def routes_svg(sizes: Sequence[Size]) -> Markup:
    """A bar for each size: the number of variables on each route."""
    seen = [route for route in COLOUR_BY_ROUTE if any(route in dict(size.routes) for size in sizes)]
    most = max((sum(dict(size.routes).values()) for size in sizes), default=0)
    if not most:
        return NONE
    parts, left = [legend(90, 14, [(route, COLOUR_BY_ROUTE[route]) for route in seen])], 90.0
    for number, size in enumerate(sizes):
        x, y = left, 26 + 28 * number
        parts.append(text(left - 8, y + 14, pluralize(size.hosts, "host"), "end"))
        for route in seen:
            count = dict(size.routes).get(route, 0)
            if count:
                width = (_WIDTH - left - 20) * count / most
                parts.append(
                    rect(x, y, width, 20, COLOUR_BY_ROUTE[route], f"{route}: {count}", Markup(' class="route"'))
                )
                if width > 24:
                    parts.append(text(x + 6, y + 14, str(count), fill="#fff"))
                x += width
    return svg(_WIDTH, 30 + 28 * len(sizes), "by-route", "Variables by route and number of hosts", parts)


def _curve(points: Sequence[tuple[float, float]], stroke: str, more: Markup = NONE) -> Markup:
    places = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
    return Markup('<polyline points="{}" fill="none" stroke="{}" stroke-width="2"{}/>').format(places, stroke, more)


def _cells(size: Size) -> tuple[str, ...]:
    gap = f" (within {100 * size.gap:.2g} % of the best)" if size.gap else ""
    return (
        str(size.hosts),
        str(size.workers),
        ms_text(size.step_s) + gap,
        "?" if size.throughput is None else _count(size.throughput),
        _percent(size.efficiency),
        bytes_text(size.memory_bytes),
        bytes_text(size.sent_bytes),
        ", ".join(f"{route} {count}" for route, count in size.routes),
    )


def _balances(simulation: Simulation) -> list[tuple[str, ...]]:
    return [
        (
            balance.name,
            bytes_text(balance.value_bytes),
            ms_text(balance.compute_s),
            ms_text(balance.exchange_s),
            "never" if balance.workers is None else pluralize(balance.workers, "worker"),
        )
        for balance in simulation.balances[: _SHOWN_LAYERS + 1]
    ]


def _count(number: float) -> str:
    return f"{number:,.0f}" if number >= 1000 else f"{number:.3g}"


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.3g} %"


def _table(name: str, heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    def line_of(cell: Markup, texts: Sequence[str]) -> Markup:
        return Markup("<tr>{}</tr>").format(Markup().join(cell.format(text) for text in texts))

    body = Markup().join(line_of(Markup("<td>{}</td>"), row) for row in rows)
    return Markup('<div class="wide"><table id="{}"><thead>{}</thead><tbody>{}</tbody></table></div>').format(
        name, line_of(Markup("<th>{}</th>"), heading), body
    )
