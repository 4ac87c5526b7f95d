"""Draws the pictures of a plan: its hosts, its bytes by route, the timeline of a step, and changes of route."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from markupsafe import Markup

from parallax.plans.model_stages import runs_in_flight
from parallax.plans.plan import Plan, VariablePlan
from parallax.plans.prediction import LINK, TOUCHED, Flip
from parallax.report.html.holdings import Holding, list_holdings, memory_by_host, rate_now, sent_by_route
from parallax.report.html.svg import (
    COLOUR_BY_ROUTE,
    FAINT,
    INK,
    LETTER,
    NONE,
    PALE,
    legend,
    line,
    powers,
    rect,
    shorten,
    svg,
    text,
    ticks,
)
from parallax.report.plan_table import activation_text, flip_texts
from parallax.report.text import bytes_text, ms_text, pluralize

WIDTH = 1100.0
SHOWN_HOSTS = 24
"""The maximum of hosts that are drawn; the text below the picture gives the range over all of them."""

SHOWN_FLIPS = 40
_COMPUTE, _EXCHANGE = "#9fb4c7", "#2f6db5"
_MEMORY = (
    ("memory: values and slots", "#4d6a85"),
    ("memory: buffers", "#8aa6bf"),
    ("memory: the model's own", "#c9b58a"),
)
_PER_LINE, _BOX, _ROW = 4, 142.0, 24.0
_SEEN = 1.5
"""The width in pixels from which a variable has its own box."""

_DECADES = 1.5
"""The number of decades drawn beyond the outermost value of a chart of route changes."""


def hosts_svg(plan: Plan) -> Markup:
    """Hosts as boxes: the stored bytes of each by variable, its memory, and its link's bytes in a step."""
    holdings, memory = list_holdings(plan, SHOWN_HOSTS), memory_by_host(plan)
    shown = min(len(plan.hosts), SHOWN_HOSTS)
    columns = min(_PER_LINE, shown)
    wide = WIDTH / columns if columns > 2 else WIDTH / 2
    most_held = max([sum(h.held_bytes for h in of_host) for of_host in holdings] + [1])
    most_memory = max([sum(m) for m in memory] + [1])
    most_moved = max([max(load.out_bytes, load.in_bytes) for load in plan.prediction.loads] + [1])
    routes = [(route, COLOUR_BY_ROUTE[route]) for route in _routes(plan)]
    parts = [legend(4, 14, [*routes, *((words, fill) for words, fill in _MEMORY)])]
    for host in range(shown):
        x, y = wide * (host % columns) + 4, 28 + _BOX * (host // columns)
        full = wide - 16
        parts.append(
            rect(x, y, full, _BOX - 12, "#fbfbfb", more=Markup(' rx="4" stroke="{}" class="host"').format(PALE))
        )
        servers = plan.servers.count(host)
        words = f"host {host}: {pluralize(plan.hosts[host], 'worker')}"
        parts.append(text(x + 8, y + 18, words + (f", {pluralize(servers, 'server')}" if servers else "")))
        bar = full - 16
        total = sum(h.held_bytes for h in holdings[host])
        parts.append(text(x + 8, y + 37, f"holds {bytes_text(total)} of variables", fill=FAINT, size=11))
        parts += _draw_holdings(holdings[host], x + 8, y + 42, bar, most_held)
        parts += _memory(memory[host], x + 8, y + 72, bar, most_memory)
        if host < len(plan.prediction.loads):
            load = plan.prediction.loads[host]
            for place, (what, count) in enumerate((("sends", load.out_bytes), ("receives", load.in_bytes))):
                left, half = x + 8 + place * bar / 2, bar / 2 - 8
                parts.append(text(left, y + 103, f"{what} {bytes_text(count)}", fill=FAINT, size=11))
                parts.append(rect(left, y + 108, half, 9, PALE))
                parts.append(rect(left, y + 108, half * count / most_moved, 9, _EXCHANGE, f"{what} {count:,} bytes"))
        else:
            parts.append(text(x + 8, y + 108, "bytes on its link: unknown", fill=FAINT, size=11))
    return svg(WIDTH, 28 + _BOX * math.ceil(shown / columns), "hosts", "Hosts and what they hold", parts)


def _draw_holdings(holdings: Sequence[Holding], x: float, y: float, bar: float, most: int) -> list[Markup]:
    """The variables of a host, by route and size; small ones of a route are merged, as models may have thousands."""
    parts = [rect(x, y, bar, 12, PALE)]
    for route, fill in COLOUR_BY_ROUTE.items():
        of_route = sorted((h for h in holdings if h.route == route), key=lambda h: (-h.held_bytes, h.name))
        seen = [h for h in of_route if bar * h.held_bytes / most >= _SEEN]
        boxes = [(h.held_bytes, f"{h.name}: {bytes_text(h.held_bytes)}, {h.what}, {route}") for h in seen]
        small = [h.held_bytes for h in of_route[len(seen) :]]
        if sum(small):
            words = f"{pluralize(len(small), 'smaller variable')}: {bytes_text(sum(small))}, {route}"
            boxes.append((sum(small), words))
        for count, tip in boxes:
            width = bar * count / most
            parts.append(rect(x, y, width, 12, fill, tip, Markup(' class="held" stroke="#fff" stroke-width="0.5"')))
            x += width
    return parts


def _memory(memory: tuple[int, int, int], x: float, y: float, bar: float, most: int) -> list[Markup]:
    known = f"memory {bytes_text(sum(memory))}" + ("" if memory[2] else " without the model's own")
    parts = [text(x, y, known, fill=FAINT, size=11), rect(x, y + 5, bar, 9, PALE)]
    for count, (what, fill) in zip(memory, _MEMORY, strict=True):
        if count:
            parts.append(rect(x, y + 5, bar * count / most, 9, fill, f"{what}: {bytes_text(count)}"))
            x += bar * count / most
    return parts


def describe_hidden_hosts(plan: Plan) -> str:
    """Text about hosts that the picture omits."""
    if len(plan.hosts) <= SHOWN_HOSTS:
        return ""
    totals = [sum(m) for m in memory_by_host(plan)]
    words = f"The first {SHOWN_HOSTS} of {len(plan.hosts)} hosts. "
    words += f"Of all, memory is {bytes_text(min(totals))} to {bytes_text(max(totals))}"
    moved = [max(load.out_bytes, load.in_bytes) for load in plan.prediction.loads]
    if moved:
        words += f", and the busier direction of a link carries {bytes_text(min(moved))} to {bytes_text(max(moved))}"
    return words + "."


def routes_svg(plan: Plan) -> Markup:
    """Bytes that one worker sends in a step, by route."""
    sent = sent_by_route(plan)
    most = max([count for count, _, _ in sent.values()] + [1])
    parts = []
    for place, (route, (count, variables, unknown)) in enumerate(sent.items()):
        y = 8 + 30 * place
        words = f"{bytes_text(count)}, {pluralize(variables, 'variable')}"
        words += f", {unknown} of them of unknown bytes" if unknown else ""
        width = (WIDTH - 420) * count / most
        parts.append(text(4, y + 14, route))
        parts.append(rect(84, y, width, 20, COLOUR_BY_ROUTE[route], f"{count:,} bytes", Markup(' class="route"')))
        parts.append(text(84 + width + 8, y + 14, words))
    return svg(WIDTH, 12 + 30 * len(sent), "routes", "Bytes per worker and step, by route", parts)


def timeline_svg(plan: Plan) -> Markup:
    """The predicted step: a row for each phase, from left to right in time."""
    phases, step_s = plan.prediction.phases, plan.prediction.step_s
    if step_s is None or not step_s > 0:
        return NONE
    left, right = 210.0, 190.0
    scale = (WIDTH - left - right) / max(step_s, max((p.end_s for p in phases), default=0.0))
    bottom = 10 + _ROW * len(phases)
    parts = []
    for value in ticks(1e3 * step_s):
        x = left + scale * value / 1e3
        parts += [line(x, 4, x, bottom, PALE), text(x, bottom + 16, f"{value:g} ms", "middle", FAINT, 11)]
    for place, phase in enumerate(phases):
        y, lasts_s = 8 + _ROW * place, phase.end_s - phase.start_s
        fill = _COMPUTE if phase.name in ("compute", "session") else _EXCHANGE
        tip = f"{phase.name}: {ms_text(phase.start_s)} to {ms_text(phase.end_s)}"
        words = f"{ms_text(lasts_s)}, {100 * lasts_s / step_s:.0f} %"
        words += f", host {phase.host}'s link" if phase.host is not None else ""
        parts.append(text(4, y + 14, phase.name))
        parts.append(
            rect(left + scale * phase.start_s, y + 2, scale * lasts_s, _ROW - 7, fill, tip, Markup(' class="phase"'))
        )
        parts.append(text(left + scale * phase.end_s + 6, y + 14, words, fill=FAINT, size=11))
    return svg(WIDTH, bottom + 24, "timeline", "The predicted step in time", parts)


def link_flips_svg(plan: Plan) -> Markup:
    """For each variable, its best route by the rate of the slowest link, all links scaled alike; empty without any."""

    def name(value: float) -> str:
        return f"{value / 1e9:g} Gbit/s" if value >= 1e9 else f"{value / 1e6:g} Mbit/s"

    now = rate_now(plan)
    rows = [(v, [f for f in v.flips if f.quantity == LINK], now) for v in plan.variables]
    return _flips(rows, "link-flips", "Best route by the rate of the slowest link", name, 8)


def touched_flips_svg(plan: Plan) -> Markup:
    """For each variable, its best route by its touched rows; empty without any."""
    rows = [
        (v, [f for f in v.flips if f.quantity == TOUCHED], None if v.touched_rows is None else float(v.touched_rows))
        for v in plan.variables
    ]
    return _flips(rows, "touched-flips", "Best route by touched rows", lambda value: f"{value:,.0f} rows")


def _flips(
    rows: Sequence[tuple[VariablePlan, list[Flip], float | None]],
    name: str,
    words: str,
    tick: Callable[[float], str],
    unit: float = 1,
) -> Markup:
    """One row per variable: the current route around its present value, others beyond the values where they begin.

    The axis is labelled in units, each of `unit` values.
    """
    rows = [row for row in rows if row[1]][:SHOWN_FLIPS]
    if not rows:
        return NONE
    values = [f.value for _, flips, _ in rows for f in flips] + [now for _, _, now in rows if now is not None]
    low = 10 ** (math.log10(max(min(values), 1e-9)) - _DECADES)
    high = 10 ** (math.log10(max(values)) + _DECADES)
    if name == "touched-flips":
        most = max((float(v.shape[0]) for v, _, _ in rows if v.shape), default=high)
        low, high = max(low, 1.0), max(low, 1.0, min(high, most))
    left, right = 20 + LETTER * min(34, max(len(v.name) for v, _, _ in rows)), 50.0

    def x(value: float) -> float:
        place = (math.log10(max(value, low)) - math.log10(low)) / max(math.log10(high) - math.log10(low), 1e-9)
        return left + (WIDTH - left - right) * min(max(place, 0.0), 1.0)

    top = 28.0
    bottom = top + _ROW * len(rows)
    parts = [legend(4, 14, [(r, COLOUR_BY_ROUTE[r]) for r in _flip_routes(rows)] + [("now", INK)])]
    for value in powers(unit * low, unit * high):
        at = x(value / unit)
        parts += [line(at, top - 4, at, bottom, PALE), text(at, bottom + 16, tick(value), "middle", FAINT, 11)]
    for place, (variable, flips, now) in enumerate(rows):
        y = top + _ROW * place
        parts.append(text(4, y + 14, shorten(variable.name, 34)))
        below = max((f.value for f in flips if not f.above), default=low)
        above = min((f.value for f in flips if f.above), default=high)
        spans = [(below, above, variable.route, "as planned")]
        for flip in flips:
            ends = (above, high) if flip.above else (low, below)
            spans.append((*ends, flip.route, flip_texts((flip,))[0]))
        for start, end, route, tip in spans:
            words_of = f"{variable.name}: {route}, {tip}"
            parts.append(
                rect(
                    x(start),
                    y + 3,
                    x(end) - x(start),
                    _ROW - 8,
                    COLOUR_BY_ROUTE[route],
                    words_of,
                    Markup(' class="flip"'),
                )
            )
        if now is not None:
            parts.append(line(x(now), y, x(now), y + _ROW - 2, INK, Markup(' stroke-width="2.5"')))
    return svg(WIDTH, bottom + 24, name, words, parts)


def _flip_routes(rows: Sequence[tuple[VariablePlan, list[Flip], float | None]]) -> list[str]:
    seen = {v.route for v, _, _ in rows} | {f.route for _, flips, _ in rows for f in flips}
    return [route for route in COLOUR_BY_ROUTE if route in seen]


def _routes(plan: Plan) -> list[str]:
    seen = {v.route for v in plan.variables}
    return [route for route in COLOUR_BY_ROUTE if route in seen]


def stages_svg(plan: Plan) -> Markup:
    """The stages: a row for each with what it holds, sends and keeps, and its predicted turns; empty without stages."""
    if not plan.stages:
        return NONE
    end_s = max((stage.turns[-1].end_s for stage in plan.stages if stage.turns), default=0.0)
    left, row = 330.0, _ROW + 14
    scale, bottom = (WIDTH - left - 20) / end_s if end_s else 0.0, 26 + row * len(plan.stages)
    parts = [legend(left, 14, [("forward", _EXCHANGE), ("backward", _COMPUTE)])] if end_s else []
    for value in ticks(1e3 * end_s) if end_s else ():
        x = left + scale * value / 1e3
        parts += [line(x, 22, x, bottom, PALE), text(x, bottom + 16, f"{value:g} ms", "middle", FAINT, 11)]
    for number, stage in enumerate(plan.stages):
        y, runs = 26 + row * number, runs_in_flight(number, len(plan.stages), plan.accumulate_steps)
        words = f"{pluralize(len(stage.variables), 'variable')}, {100 * stage.cost_share:.0f} % of the operations"
        held = f"holds {bytes_text(stage.held_bytes)}, and activations of {activation_text(stage, runs)}"
        parts.append(text(4, y + 13, f"stage {number}: {words}"))
        parts.append(text(4, y + 28, f"{held}, sends {bytes_text(stage.sent_bytes)}", fill=FAINT, size=11))
        for turn in stage.turns:
            way, fill = ("backward", _COMPUTE) if turn.is_backward else ("forward", _EXCHANGE)
            tip = f"micro-batch {turn.micro_batch}, {way}: {ms_text(turn.start_s)} to {ms_text(turn.end_s)}"
            more, width = Markup(' class="turn" stroke="#fff" stroke-width="0.5"'), scale * (turn.end_s - turn.start_s)
            parts.append(rect(left + scale * turn.start_s, y + 4, width, row - 12, fill, tip, more))
    return svg(WIDTH, bottom + 24, "stages", "The stages of the model, and their micro-batches in time", parts)
