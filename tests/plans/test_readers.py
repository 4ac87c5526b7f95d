"""Plans and profiles are read strictly: whatever a file holds is refused in words, or can be shown and used."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from parallax.analysis.planner import make_plan
from parallax.base.errors import ParallaxError, PlanError
from parallax.base.strict import shown
from parallax.cluster.plan_inputs import PlanInputs
from parallax.cluster.profiles import cluster_profile_from_json, model_profile_from_json
from parallax.cluster.resource_file import parse_resource_text
from parallax.plans.plan import Layout, Plan, plan_from_json
from parallax.report.diff import difference_text, differences
from parallax.report.html.page import plan_page
from parallax.report.plan_table import explain_variable, plan_table
from parallax.report.profile_table import profile_table
from tests.mutations import for_all, mutated_bytes, mutated_json
from tests.report.html.plans import language_model, measured, timed, untimed, with_flips

PLANS = [timed(), untimed(), with_flips()]
HOW_MANY = [pytest.param(200, id="some"), pytest.param(10_000, id="ten thousand", marks=pytest.mark.slow)]


def everything_shown(plan: Plan, other: Plan) -> tuple[str, str]:
    """(all that a terminal shows of it, its page)."""
    found = [plan_table(plan), plan_table(plan, shows_all=True)]
    found += [explain_variable(plan, variable.name) for variable in plan.variables]
    found += [difference_text(differences(*pair)) for pair in ((plan, other), (other, plan))]
    return "".join(found).replace("\n", ""), plan_page(plan)


@pytest.mark.parametrize("count", HOW_MANY)
def test_mutated_plans_are_refused_or_can_be_shown(count: int) -> None:
    taken = []

    def check(drawn: tuple[Plan, str]) -> None:
        before, text = drawn
        try:
            plan = plan_from_json(text)
        except PlanError as error:
            assert str(error).isprintable()
            return
        taken.append(plan)
        on_terminal, page = everything_shown(plan, before)
        assert on_terminal.isprintable() and "<script>alert" not in page

    for_all(count, check, st.one_of([st.tuples(st.just(plan), mutated_json(plan.to_json())) for plan in PLANS]))
    assert count / 50 < len(taken) < count / 2


def planned_with(cluster: str, model: str) -> None:
    known = PlanInputs(cluster_profile_from_json(cluster), model_profile_from_json(model))
    known.check_belongs_to(known.model.graph if known.model else "", 4)
    assert known.model is not None
    profile_table(known.model)
    make_plan(language_model(), Layout((1, 1, 1, 1), (0, 1)), None, known)


@pytest.mark.parametrize("count", [pytest.param(60, id="some"), HOW_MANY[1]])
def test_mutated_profiles_are_refused_or_can_be_planned_with(count: int) -> None:
    known = measured()
    assert known.cluster is not None and known.model is not None
    cluster, model = known.cluster.to_json(), known.model.to_json()

    def check(texts: tuple[str, str]) -> None:
        try:
            planned_with(*texts)
        except ParallaxError as error:
            assert str(error).isprintable()

    of_cluster, of_model = mutated_json(cluster), mutated_json(model)
    for_all(count, check, st.tuples(of_cluster, st.just(model)) | st.tuples(st.just(cluster), of_model))


RESOURCES = (
    "hosts:\n- address: node1\n  workers: 2\n  bandwidth: 10gbit\n- address: 10.0.0.2\nssh:\n  port: 2222\n",
    "node1: 0,1,2\nnode2\n",
    "node1 slots=2\nnode2 slots=1\n",
)


@pytest.mark.parametrize("count", HOW_MANY)
def test_mutated_resource_files_are_refused_or_have_plain_names(count: int) -> None:
    def check(content: bytes) -> None:
        try:
            found = parse_resource_text(content.decode(errors="replace"), "machines")
            assert all(host.address.isprintable() for host in found.hosts)
        except ParallaxError as error:
            assert str(error).isprintable()

    for_all(count, check, st.one_of([mutated_bytes(text.encode()) for text in RESOURCES]))


def test_what_was_received_is_said_with_its_place() -> None:
    def refusal(change: Callable[[Any], None], read: Callable[[str, str], object] = plan_from_json) -> str:
        raw = json.loads(PLANS[0].to_json())
        change(raw)
        with pytest.raises(PlanError) as refused:
            read(json.dumps(raw), "p.json")
        return str(refused.value)

    assert "p.json: the plan file is not as `parallax plan --json` writes it" in refusal(lambda raw: raw.pop("hosts"))
    message = refusal(lambda raw: raw["variables"][1]["cost"].update(rounds="<script>"))
    assert "expected `int`, got `str` at $.variables[1].cost.rounds: '<script>'" in message
    assert "expected `int` <= 9007199254740992 at $.hosts[0]: 1000000" in refusal(
        lambda raw: raw.update(hosts=[10**30])
    )
    assert "unknown field 'odd' at $.variables[0]" in refusal(lambda raw: raw["variables"][0].update(odd=1))
    assert "servers, loads or phases are of hosts that are 9, and there are 4" in refusal(
        lambda raw: raw.update(servers=[9])
    )
    table = next(place for place, variable in enumerate(PLANS[0].variables) if variable.touched_rows is not None)
    assert "has touched rows, and a shape without rows" in refusal(lambda raw: raw["variables"][table].update(shape=[]))
    with pytest.raises(PlanError, match="a plan file must be valid JSON"):
        plan_from_json("[" * 100_000)


def test_control_characters_are_shown_as_escapes() -> None:
    assert shown("emb/part_0 <b>") == "emb/part_0 <b>"
    assert shown("a\x1b[2Jb\n\u202e") == "a\\x1b[2Jb\\n\\u202e"
