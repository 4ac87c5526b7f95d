"""The page of a plan, read with html.parser: its structure, what it says, and that it needs nothing else."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from parallax.analysis.planner import make_plan
from parallax.entry import cli
from parallax.plans.plan import Layout, Plan
from parallax.plans.prediction import HostLoad
from parallax.report.html import page as page_module
from parallax.report.html.holdings import list_holdings, rate_now, sent_by_route
from parallax.report.html.page import plan_page
from parallax.report.html.pictures import SHOWN_HOSTS, hosts_svg
from parallax.report.html.simulation_page import simulation_page
from parallax.report.html.svg import powers, shorten, ticks
from parallax.report.html.table import SHOWN_OWNERS
from tests.analysis.measured import MB
from tests.analysis.specs import dense, spec
from tests.report.html.plans import language_model, simulated, timed, untimed, with_flips

SOURCES = sorted(Path(page_module.__file__).parent.glob("*.py"))
VOID = {"meta", "input", "br"}


class Page(HTMLParser):
    """All elements of a page: (tag, attributes), the words in it, and whether each that begins ends in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> ends something else"

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words += data + "\n"

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_only_constants_are_markup(source: Path) -> None:
    """Whatever else is in a page has come through `format` or `join`, which escape it."""
    calls = [node for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    made = [call for call in calls if ast.unparse(call.func) == "Markup"]
    assert [ast.unparse(call) for call in made if not all(isinstance(a, ast.Constant) for a in call.args)] == []
    assert not any("escape" in ast.unparse(call.func) for call in calls)


def test_a_name_that_is_no_name_stays_text() -> None:
    hostile = "<script>alert(1)</script>\"'&"
    plan = timed()
    first, *others = plan.variables
    first = replace(first, name=hostile, reason=hostile, dtype=hostile, evidence=(hostile,), slots=(hostile,))
    page = Page(plan_page(replace(plan, variables=(first, *others), notes=(hostile,), fingerprint=hostile)))
    assert sum(tag == "script" for tag, _ in page.elements) == 1 and page.words.count(hostile) >= 5


def test_pictures_have_axes_at_the_ends_of_what_numbers_there_are() -> None:
    assert ticks(1e-320) == ticks(0.0) == ticks(-1.0) == [0.0] and len(ticks(1e15)) > 3
    plan = with_flips()
    empty = tuple(replace(variable, shape=(0,)) for variable in plan.variables)
    assert page_of(replace(plan, variables=empty)).of_class("touched-flips")


def page_of(plan: Plan) -> Page:
    page = Page(plan_page(plan))
    assert page.open == []
    return page


@pytest.mark.parametrize("text", [plan_page(timed()), plan_page(untimed()), simulation_page(simulated())])
def test_a_page_is_well_formed_and_needs_nothing_else(text: str) -> None:
    page = Page(text)
    assert page.open == []
    assert not {tag for tag, _ in page.elements} & {"link", "img", "iframe", "object", "embed", "base"}
    assert all(not {"src", "href", "onclick"} & set(attributes) for _, attributes in page.elements)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|<script src", text)
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}


def test_every_variable_has_a_row_with_its_costs_term_by_term() -> None:
    plan = timed()
    page = page_of(plan)
    assert [row["data-name"] for row in page.of_class("variable")] == [v.name for v in plan.variables]
    assert "It is sparse because\nembedding_lookup (ResourceGather) reads its rows\n" in page.words
    assert "Slots: embedding/Adam." in page.words
    assert "worker 3 on host 3: 25000 rows, 6.4 MB" in page.words
    chosen = plan.variable("embedding")
    assert len(chosen.cost.terms) == 9 and len(chosen.rejected) == 3
    assert "pull: rows back: on the busiest link (84.5 kB)" in page.words
    assert "400 (0.4 %)" in page.words and "allgather +6.12 ms (8.2 %)" in page.words
    assert "allreduce above" in page.words


def test_the_pictures_show_every_host_phase_and_route() -> None:
    plan = with_flips()
    page = page_of(plan)
    assert len(page.of_class("host")) == 4 and len(page.of_class("held")) == 12
    assert len(page.of_class("phase")) == len(plan.prediction.phases) == 4
    assert len(page.of_class("route")) == 2
    assert len(page.of_class("link-flips")) == len(page.of_class("touched-flips")) == 1
    assert len(page.of_class("flip")) == 5  # before and after a rate, and before, between and after two numbers of rows
    assert "10 Gbit/s" in page.words and "100 rows" in page.words and "proven best" in page.words
    assert rate_now(plan) == pytest.approx(25 * MB, rel=1e-3)


def test_without_times_the_page_says_what_is_unknown() -> None:
    page = page_of(untimed())
    assert "Times unknown: measure the cluster with `parallax calibrate`." in page.words
    assert "1.42 MB and unknown" in page.words and "bytes on its link: unknown" in page.words
    assert "1 of them of unknown bytes" in page.words
    assert not page.of_class("timeline") and not page.of_class("flip") and len(page.of_class("hosts")) == 1


def test_names_are_text_and_never_tags() -> None:
    text = plan_page(untimed())
    assert "words <b>" in page_of(untimed()).words and "words <b>" not in text
    assert "<update>" in Page(plan_page(timed())).words and "<update>" not in plan_page(timed())


def test_hosts_hold_copies_rows_and_partitions() -> None:
    held = {h.name: h for h in list_holdings(untimed(), 2)[1]}
    assert (held["embedding"].held_bytes, held["embedding"].what) == (12_800_000, "50,000 of 100,000 rows")
    assert (held["lstm/bias"].held_bytes, held["lstm/bias"].what) == (2 * 2048, "a copy in every worker")
    assert held["positions"].held_bytes == 300 * 64 * 4 // 2
    assert sent_by_route(untimed())["ps"] == (335_360, 1, 0)


def test_of_many_hosts_and_owners_some_are_shown_and_the_rest_is_told() -> None:
    plan = make_plan(language_model(), Layout((1,) * 40))
    loads = tuple(HostLoad(host, 1000 + host, 1000) for host in range(40))
    page = page_of(replace(plan, prediction=replace(plan.prediction, loads=loads)))
    assert len(page.of_class("host")) == SHOWN_HOSTS
    assert "The first 24 of 40 hosts." in page.words and "a link carries 1 kB to 1.04 kB" in page.words
    assert f"and {40 - SHOWN_OWNERS} more; of all, from 7 to 8 rows each" in page.words
    assert "host 24" not in hosts_svg(plan)


def test_small_variables_share_a_box() -> None:
    many = spec(dense("large", (1000, 1000)), *(dense(f"bias{n:03}", (10,)) for n in range(500)))
    page = Page(hosts_svg(make_plan(many, Layout((1, 1)))))
    assert len(page.of_class("held")) == 4 and "500 smaller variables: 20 kB, allreduce" in page.words


def test_a_stored_plan_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "plan.json", tmp_path / "plan.html"
    file.write_text(timed().to_json())
    with pytest.raises(SystemExit) as ended:
        cli.main(["show", str(file), "--html", str(page)])
    assert ended.value.code == 0 and "A step takes 74.6 ms" in capsys.readouterr().out
    assert page.read_text(encoding="utf-8") == plan_page(timed())
    with pytest.raises(SystemExit) as ended:
        cli.main(["show", str(file), "--html", str(tmp_path / "no" / "plan.html")])
    assert ended.value.code == 1 and "--html must name a writable file" in capsys.readouterr().err


def test_the_phases_of_a_simulation_have_colours_of_their_own() -> None:
    page = Page(simulation_page(simulated()))
    fills = {str(phase["fill"]) for phase in page.of_class("phase")}
    assert len(fills) == len({phase.name for size in simulated().sizes for phase in size.phases}) == 5


def test_scales_have_round_values() -> None:
    assert ticks(0.074) == pytest.approx([0, 0.02, 0.04, 0.06])
    assert ticks(100) == [0, 20, 40, 60, 80, 100] and ticks(0) == [0.0]
    assert powers(0.9, 1000) == pytest.approx([1, 10, 100, 1000])
    assert shorten("abcdefghij", 5) == "ab\u2026ij" and shorten("abc", 3) == "abc"
