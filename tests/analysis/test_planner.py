"""The planner on variables written down by hand; no TensorFlow."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

import parallax
from parallax.analysis.planner import get_training_mode
from parallax.base.errors import PlanError
from parallax.graph.spec import Part, VariableClass, VariableSpec
from parallax.plans.plan import Plan, one_host, plan_from_json
from parallax.report.plan_table import explain_variable, plan_table
from tests.analysis.specs import dense, make_plan, sparse, spec


def routes(plan: Plan) -> dict[str, str]:
    return {v.name: v.route for v in plan.variables}


@pytest.mark.parametrize(("wire", "said"), [("bfloat16", "Horovod cannot sum bfloat16"), ("float16", "as float16")])
def test_a_plan_says_what_travels_in_half_precision_and_keeps_it(wire: str, said: str) -> None:
    plan = make_plan(spec(dense(), sparse()), 4, wire_dtype=wire)
    assert [said in note for note in plan.notes] == [wire == "float16", True]
    assert f"note: rows and their gradients are sent as {wire}" in plan_table(plan)
    assert plan_from_json(plan.to_json()) == plan
    assert get_training_mode(plan).wire_dtype == wire


def test_kept_gradients_travel_once_for_all_batches_of_an_update() -> None:
    # 1000 rows; 50 touched by each of 4 batches, none of them twice: 200 gradient rows, whose ids travel again.
    (planned,) = make_plan(spec(sparse()), 4, accumulate_steps=4).variables
    found = {r.route: (r.sent_bytes, r.rounds) for r in (planned.cost, *planned.rejected)}
    assert found == {
        "alltoall": (3 * (200 * (4 + 32) + 200 * (4 + 32)) // 4, 10),
        "allgather": (3 * 200 * (4 + 32), 1),
        "allreduce": (2 * 3 * (32000 + 4000) // 4, 1),
        "ps": (200 * (4 + 32) + 200 * (8 + 32), 10),
    }
    many = make_plan(spec(sparse()), 4, accumulate_steps=40)
    (one,) = many.variables
    pushed = 1000  # no more than there are
    assert {r.route: r.sent_bytes for r in (one.cost, *one.rejected)}["alltoall"] == 3 * (2000 + pushed) * 36 // 4
    assert one.route == "allreduce" and planned.route == "alltoall"
    assert many.accumulate_steps == get_training_mode(many).accumulate_steps == 40
    assert "note: each update takes the gradients of 40 batches of every worker" in plan_table(many)
    assert plan_from_json(many.to_json()) == many


def test_kept_gradients_take_memory() -> None:
    plans = [make_plan(spec(dense()), 2, accumulate_steps=k) for k in (1, 3)]
    before, after = (plan.prediction.memory[0].exchange_bytes for plan in plans)
    assert after == before + 160  # a gradient more, however many batches
    plans = [make_plan(spec(sparse()), 2, accumulate_steps=k, routes={"emb": "alltoall"}) for k in (1, 3)]
    before, after = (plan.prediction.memory[0].exchange_bytes for plan in plans)
    pushed = 2 * 100 * 32  # 100 gradient rows more: this worker's, and as many that it is sent
    assert after == before + pushed + 2 * 50 * (8 + 32)  # and two batches' rows with their ids


def test_an_update_takes_one_batch_at_least() -> None:
    with pytest.raises(PlanError, match="accumulate_steps must be at least 1, got 0"):
        make_plan(spec(sparse()), 2, accumulate_steps=0)


def test_an_unknown_type_on_the_wire_is_refused() -> None:
    with pytest.raises(PlanError, match=r"bfloat16, float16, or None, got 'float8'"):
        make_plan(spec(sparse()), 2, wire_dtype="float8")


def test_owners_hold_all_rows_between_them_and_equally_many() -> None:
    (planned,) = make_plan(spec(sparse(shape=(1003, 8))), 4).variables
    assert planned.owner_rows == (251, 251, 251, 250)


def test_a_table_with_nearly_all_rows_touched_is_all_reduced() -> None:
    assert routes(make_plan(spec(sparse(shape=(1000, 64), ids=5000)), 8)) == {"emb": "allreduce"}


@pytest.mark.parametrize("seed", range(20))
def test_the_chosen_route_has_the_fewest_bytes_of_all(seed: int) -> None:
    draw = random.Random(seed)
    variable = sparse(shape=(draw.randint(10, 5000), draw.randint(1, 64)), ids=draw.randint(1, 4000))
    (planned,) = make_plan(spec(variable), draw.randint(2, 9)).variables
    least = min([r.sent_bytes or 0 for r in planned.rejected])
    every_row = planned.touched_rows == variable.rows and planned.route == "allreduce"
    assert (planned.cost.sent_bytes or 0) <= least * (1.02 if every_row else 1)


def test_one_worker_sends_nothing_and_has_rows_stay_rows() -> None:
    (planned,) = make_plan(spec(sparse()), 1).variables
    assert (planned.route, planned.cost.sent_bytes, planned.cost.rounds) == ("allgather", 0, 1)


def test_without_a_batch_size_sparse_rows_go_to_their_owners_and_bytes_are_unknown() -> None:
    (planned,) = make_plan(spec(sparse(ids=None)), 4).variables
    assert (planned.route, planned.cost.sent_bytes) == ("alltoall", None)
    assert "touched_rows" in planned.reason


def test_touched_rows_given_by_the_user_count() -> None:
    (planned,) = make_plan(spec(sparse(ids=None)), 4, touched_rows={"emb": 10}).variables
    assert (planned.touched_rows, planned.cost.sent_bytes) == (10, 3 * 10 * 68 // 4)


def test_an_override_is_obeyed_and_said() -> None:
    (planned,) = make_plan(spec(sparse()), 4, routes={"emb": "allgather"}).variables
    assert (planned.route, planned.reason) == ("allgather", "asked for in the configuration")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"embb": "alltoall"}, "no variable 'embb'. Did you mean: emb"),
        ({"w": "alltoall"}, "'w' cannot take route alltoall: its gradient is dense. Possible routes: allreduce"),
        ({"emb": "ring"}, "'emb' must be one of allreduce, allgather, alltoall, ps, got 'ring'"),
        ({"tiny": "alltoall"}, "'tiny' cannot take route alltoall: fewer rows .3. than workers .4."),
        ({"odd": "alltoall"}, "'odd' cannot take route alltoall: Sort 'sort' has no rule"),
    ],
)
def test_an_impossible_override_is_refused_with_the_reason(wanted: dict[str, str], message: str) -> None:
    odd = replace(sparse("odd"), cls=VariableClass.NOT_SHARDABLE, reason="Sort 'sort' has no rule")
    with pytest.raises(PlanError, match=message):
        make_plan(spec(dense(), sparse(), sparse("tiny", (3, 8)), odd), 4, routes=wanted)


def test_rows_of_a_type_that_horovod_does_not_send_are_all_reduced() -> None:
    (planned,) = make_plan(spec(replace(sparse(), dtype="bfloat16", dtype_bytes=2)), 4).variables
    assert planned.route == "allreduce"
    assert "cannot send rows of type bfloat16" in planned.rejected[0].note


@pytest.mark.parametrize("rows", [0, 1001])
def test_touched_rows_must_be_rows_of_the_variable(rows: int) -> None:
    with pytest.raises(
        PlanError, match=rf"touched_rows\['emb'\] must be between 1 and 1000, the rows of the variable, got {rows}"
    ):
        make_plan(spec(sparse()), 4, touched_rows={"emb": rows})


def test_a_plan_reads_back_as_it_was_written() -> None:
    plan = make_plan(spec(dense(), sparse()), 4)
    assert plan_from_json(plan.to_json()) == plan
    assert plan.to_json() == make_plan(spec(dense(), sparse()), 4).to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "x.json:1: a plan file must be JSON"),
        ("[]", "x.json: the plan file must have version 3, got None"),
        ('{"version": 2}', "x.json: the plan file must have version 3, got 2"),
        ('{"version": 3}', "x.json: the plan file is not as `parallax plan --json` writes it"),
    ],
)
def test_a_file_that_is_no_plan_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_from_json(text, "x.json")


def test_a_plan_of_another_graph_or_number_of_workers_is_refused() -> None:
    plan = make_plan(spec(dense()), 4)
    with pytest.raises(PlanError, match="graph ffffffffffff, and the script built graph eeeeeeeeeeee"):
        plan.check_belongs_to(replace(spec(dense()), fingerprint="e" * 64), one_host(4))
    with pytest.raises(PlanError, match="was made for 4 workers, but the job has 2"):
        plan.check_belongs_to(spec(dense()), one_host(2))


def test_variables_without_a_route_that_are_alike_share_a_line_unless_all_are_asked_for() -> None:
    def without(name: str, cls: VariableClass = VariableClass.UNTRAINED) -> VariableSpec:
        return VariableSpec(name, (), "int64", 8, (Part(name, ()),), False, cls)

    plan = make_plan(spec(dense(), *map(without, "abcde"), without("mine", VariableClass.LOCAL)), 4)
    short, long = plan_table(plan), plan_table(plan, shows_all=True)
    line = "5 untrained variables (no gradient: equal on all workers): a, b, c and 2 more, which --all shows."
    assert line in short.splitlines() and line not in long
    rows = {text: [row.split()[0] for row in text.splitlines()[3:] if " none " in row] for text in (short, long)}
    assert rows == {short: [], long: ["a", "b", "c", "d", "e", "mine"]}  # what is local is shown with all alone


def test_routes_are_summed_up_where_variables_share_one() -> None:
    plan = make_plan(spec(dense("w"), dense("x"), sparse(), sparse("odd", ids=None)), 4)
    assert "By route: allreduce 2 variables, 480 B; alltoall 2 variables, 2.55 kB, and 1 variable of unknown size." in (
        plan_table(plan).splitlines()
    )
    assert "By route" not in plan_table(make_plan(spec(dense(), sparse()), 4))


def test_the_setting_for_unknown_rows_can_be_copied() -> None:
    plan = make_plan(spec(dense(), sparse(), *(sparse(name, ids=None) for name in ("a", "b/c"))), 4)
    words = next(line for line in plan_table(plan).splitlines() if line.startswith("To set"))
    setting = words.partition(": ")[2]
    assert eval(setting, {"parallax": parallax, "IDS": 640}).touched_rows == {"a": 640, "b/c": 640}
    known = make_plan(spec(sparse("a", ids=None)), 4, touched_rows={"a": 640})
    assert "touched_rows=" not in plan_table(known)


def test_the_table_and_the_explanation_show_every_figure(golden) -> None:
    odd = replace(sparse("odd"), cls=VariableClass.NOT_SHARDABLE, reason="Sort 'sort' has no rule")
    frozen = VariableSpec("step", (), "int64", 8, (Part("step", ()),), False, VariableClass.UNTRAINED)
    plan = make_plan(spec(dense(), sparse(), odd, sparse("unknown", ids=None), frozen), 4)
    golden(
        "plan_table.txt", plan_table(plan) + "\n" + explain_variable(plan, "emb") + "\n" + explain_variable(plan, "odd")
    )
