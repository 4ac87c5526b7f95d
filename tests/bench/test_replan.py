"""What the benchmark of changes of plan says, and finds wrong."""

import pytest

from ops.bench.replan.command import ROUTES, report, report_of_jobs

CHANGES = len(ROUTES) - 1


def printed(losses, digest=2.0, changes=CHANGES):
    lines = [f"[{rank}] loss {loss}" for loss in losses for rank in (1, 0)]
    lines += ["[0] The plan was changed in 0.52 s, 2 variables of 1 GB moved."] * changes
    return "\n".join([*lines, f"[0] digest {digest}", f"[1] digest {digest}"])


LOSSES = [1.0, 0.75, 0.5, 0.25]


def test_each_change_and_the_differences_are_told():
    said = report(printed(LOSSES), printed([1.0, 0.75, 0.5, 0.250001], changes=0), 1)
    assert said[0] == "alltoall to allgather: The plan was changed in 0.52 s, 2 variables of 1 GB moved."
    assert said[2].startswith("ps to alltoall: ")
    assert said[3].startswith("loss: relative difference of at most 4.0e-06")
    assert said[4].startswith("digest: relative difference of at most 0.0e+00")


@pytest.mark.parametrize(
    ("changed", "kept", "steps", "wrong"),
    [
        (printed(LOSSES, changes=2), printed(LOSSES), 1, "must report 3 plan changes, but reports 2"),
        (printed(LOSSES), printed([1.0, 0.75, 0.5, 0.2501]), 1, "loss differs by 4.0e-04"),
        (printed(LOSSES, digest=2.1), printed(LOSSES), 1, "digest differs by"),
        (printed(LOSSES[:3]), printed(LOSSES[:3]), 2, "must print equally many of loss"),
    ],
)
def test_what_is_wrong_ends_it(changed, kept, steps, wrong):
    with pytest.raises(SystemExit, match=wrong):
        report(changed, kept, steps)


def job_of(losses, ready, stops, digest=2.0):
    lines = [f"[{rank}] loss {loss}" for loss in losses for rank in (1, 0)]
    lines += [f"[{rank}] {what} {at + rank}" for rank in (0, 1) for what, at in (("ready", ready), ("stops", stops))]
    return "\n".join([*lines, *(f"[{rank}] digest {digest}" for rank in (0, 1))])


def test_jobs_that_go_on_from_a_checkpoint_are_timed_and_compared():
    jobs = [job_of([loss], 10.0 * number, 10.0 * number + 4) for number, loss in enumerate(LOSSES)]
    said = report_of_jobs(jobs, printed(LOSSES))
    assert said[0] == "alltoall to allgather, by a new job from a checkpoint: 6.00 s"
    assert said[3].startswith("loss: relative difference of at most 0.0e+00")
    with pytest.raises(SystemExit, match="loss differs by"):
        report_of_jobs([*jobs[:-1], job_of([0.3], 30.0, 34.0)], printed(LOSSES))
    with pytest.raises(SystemExit, match="must print when it stopped"):
        report_of_jobs([*jobs[:-1], printed([0.25])], printed(LOSSES))
