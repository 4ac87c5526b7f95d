"""What the plan predicted, beside what a run counted."""

from __future__ import annotations

from dataclasses import replace

from parallax.runtime.worker.reports.moved_bytes import ExchangeReport, RoundingCost
from tests.report.html.plans import timed, untimed

COUNTED = ExchangeReport(
    steps=10,
    touched_rows=(("embedding", 440.0), ("positions", 250.0)),
    predicted_bytes=10_000_000,
    counted_bytes=10 * 4 * 270_000,
    gathered_bytes=0,
    plan=timed(),
)


def test_rows_bytes_and_the_step_stand_beside_what_was_planned() -> None:
    assert COUNTED.compare_with_plan(0.0821).splitlines() == [
        "compared with the plan, per worker and step over 10 steps:",
        "  embedding: touched rows 400 planned, 440.0 measured (+10 %); alltoall 155 kB planned, 170 kB at these rows",
        "  positions: touched rows 250 planned, 250.0 measured (+0 %); alltoall 96.8 kB planned, 96.8 kB at these rows",
        "  alltoall bytes: 252 kB planned, 270 kB counted (+7.33 %)",
        "  step: 74.6 ms planned, 82.1 ms measured (+10.1 %)",
    ]


def test_the_step_that_the_session_measured_stands_there_unless_the_script_has_measured_it() -> None:
    beside = replace(COUNTED, step_s=0.0821)
    assert beside.compare_with_plan() == COUNTED.compare_with_plan(0.0821) and "82.1 ms measured" in str(beside)
    assert "90 ms measured" in beside.compare_with_plan(0.09)
    alone = replace(beside, plan=replace(timed(), prediction=replace(timed().prediction, has_compute=False)))
    said = "exchanges of a step: 74.6 ms planned, 82.1 ms measured of the step, with its compute"
    assert alone.compare_with_plan().endswith(said), "what is of the exchanges alone is not held against the whole step"


def test_the_report_of_a_run_with_profiles_has_it_and_of_others_has_not() -> None:
    assert COUNTED.compare_with_plan() in str(COUNTED) and COUNTED.compare_with_plan().endswith("step: 74.6 ms planned")
    assert "compared with the plan" not in str(replace(COUNTED, plan=untimed()))
    assert "no step was counted" in replace(COUNTED, steps=0).compare_with_plan()


def test_what_was_rounded_is_said_with_its_type() -> None:
    rounded = (RoundingCost("rows", 640, 0.0016, 0.0039, 2.5), RoundingCost("gradients", 64, 0.25, 1.0, 1e-8))
    report = replace(COUNTED, plan=replace(timed(), wire_dtype="float16"), rounded=rounded)
    assert (
        "relative error of float16 on the wire: rows mean 1.60e-03, largest 3.90e-03 of 640 sampled, values up to 2.5; "
        "gradients mean 2.50e-01, largest 1.00e+00 of 64 sampled, values up to 1e-08"
    ) in str(report).splitlines()
    assert "on the wire" not in str(COUNTED)
