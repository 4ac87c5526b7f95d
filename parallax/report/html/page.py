"""Formats a plan as one self-contained HTML page: a table, pictures, and the reason for each route.

The page's URL fragment selects the table's view: `#sort=-bytes&find=emb&open=NAME` sorts by bytes, most first, shows
the variables that contain the words, and opens one. The keys of columns are in parallax/report/html/table.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from parallax.plans.plan import Plan
from parallax.report.html.assets import SCRIPT, STYLE
from parallax.report.html.holdings import find_trained, memory_by_host, sent_by_route
from parallax.report.html.pictures import (
    describe_hidden_hosts,
    hosts_svg,
    link_flips_svg,
    routes_svg,
    stages_svg,
    timeline_svg,
    touched_flips_svg,
)
from parallax.report.html.svg import NONE
from parallax.report.html.table import make_list, table
from parallax.report.plan_table import members_texts, step_texts
from parallax.report.text import bytes_text, ms_text, pluralize


def plan_page(plan: Plan) -> str:
    """The page of a plan, as the text of an HTML file."""
    title = f"Plan for {', '.join(_members(plan))}"
    parts = [Markup("<h1>{}</h1>").format(title), _source(plan), _sums(plan)]
    if plan.prediction.step_s is None:
        why = plan.prediction.unknown or "times unknown"
        unknown = Markup('<p class="unknown">{} The plan was chosen by bytes.</p>')
        parts.append(unknown.format(_make_sentence(why)))
    if plan.prediction.step_s is not None:
        parts += [Markup("<p>{}</p>").format(line) for line in step_texts(plan)]
    parts.append(make_list(plan.notes))
    parts += [
        Markup("<h2>Variables</h2>"),
        Markup(
            '<label class="find">Find <input id="find" type="search" placeholder="name, class, route or reason"> '
            '<span id="shown" class="faint"></span></label>'
        ),
        Markup('<div class="wide">{}</div>').format(table(plan)),
        Markup(
            '<p class="faint">Click a heading to sort, and a name for its evidence, owners and costs term by term. '
            "Bytes are what one worker sends in a step, and it receives as many; those of ps are of both directions."
            "</p>"
        ),
        section("Stages", stages_svg(plan), _STAGES),
        section("The step in time", timeline_svg(plan), _TIMELINE),
        section("Bytes by route", routes_svg(plan), "What one worker sends in a step."),
        section("Hosts", hosts_svg(plan), describe_hidden_hosts(plan)),
        _flips(plan),
    ]
    return html_page(title, parts, SCRIPT)


_STAGES = "What a stage keeps and sends is for each example if the batch is open, else for each micro-batch."
_TIMELINE = "Phases follow each other. Where bars overlap, compute hides the exchange of gradients."


def html_page(title: str, parts: Sequence[Markup], script: Markup = NONE) -> str:
    """A complete page of some parts."""
    head = Markup(
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<title>{}</title><meta name="viewport" content="width=device-width, initial-scale=1">'
        "<style>{}</style></head><body>"
    ).format(title, STYLE)
    end = Markup("<script>{}</script>").format(script) if script else NONE
    return str(Markup("\n").join([head, *filter(None, parts), end + Markup("</body></html>\n")]))


def section(heading: str, picture: Markup, words: str = "") -> Markup:
    """A heading, a picture and a line of text below it; empty without a picture."""
    if not picture:
        return NONE
    below = Markup('<p class="faint">{}</p>').format(words) if words else NONE
    return Markup("<h2>{}</h2>{}{}").format(heading, picture, below)


def figures_line(entries: Sequence[tuple[str, str]]) -> Markup:
    """A line of figures with their labels."""
    pairs = (Markup("<div><dt>{}</dt><dd>{}</dd></div>").format(*entry) for entry in entries)
    return Markup('<dl class="sum">{}</dl>').format(Markup().join(pairs))


def _members(plan: Plan) -> list[str]:
    """Workers and servers; only their number if there are many hosts."""
    if len(plan.hosts) <= 4:
        return members_texts(plan)
    phrases = [f"{pluralize(plan.num_workers, 'worker')} on {len(plan.hosts)} hosts"]
    return [*phrases, pluralize(len(plan.servers), "server")] if plan.servers else phrases


def _source(plan: Plan) -> Markup:
    used = " and ".join(f"{p.kind} profile {p.name or p.fingerprint[:12]}" for p in plan.profiles) or "no profile"
    how = "" if plan.synchronous else ", asynchronous"
    words = f"Graph {plan.fingerprint[:12]}, run option {plan.run_option}{how}; {used}."
    return Markup('<p class="faint">{}</p>').format(words)


def _sums(plan: Plan) -> Markup:
    known = plan.prediction
    sent = sum(count for count, _, _ in sent_by_route(plan).values())
    unknown = sum(count for _, _, count in sent_by_route(plan).values())
    entries = [
        ("exchanges of a step" if known.step_s and not known.has_compute else "predicted step", ms_text(known.step_s)),
        ("sent by a worker in a step", bytes_text(sent) + (" and unknown" if unknown else "")),
        ("variables with a route", str(len(find_trained(plan)))),
    ]
    if known.gap is not None:
        proof = "proven best" if known.gap == 0 else f"at most {100 * known.gap:.2g} % from the best"
        entries.append(("of the choices there are", proof))
    memory = [sum(m) for m in memory_by_host(plan)]
    if any(memory):
        entries.append(("memory of the fullest host", bytes_text(max(memory))))
    return figures_line(entries)


def _flips(plan: Plan) -> Markup:
    of_links, of_rows = link_flips_svg(plan), touched_flips_svg(plan)
    parts = [
        section("Where routes change with the links", of_links, "All links scaled alike; the slowest is shown."),
        section("Where routes change with touched rows", of_rows, "Distinct rows that a worker reads in a step."),
    ]
    if not (of_links or of_rows) and plan.prediction.step_s is not None:
        return Markup(
            "<h2>Where routes change</h2><p>Nowhere: no rate of the links and no touched rows give another plan.</p>"
        )
    return Markup().join(parts)


def _make_sentence(words: str) -> str:
    return words[:1].upper() + words[1:].rstrip(".") + "."
