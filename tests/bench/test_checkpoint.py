"""What `python -m ops.bench checkpoint` makes of the figures of its workers."""

from __future__ import annotations

from typing import Any

from ops.bench.checkpoint.command import report

MB = 10**6


def line(rank: int, waited_s: float, above: int, equal: bool | None = None) -> dict[str, Any]:
    figures = {"share": 600 * MB, "stood_s": 2.0, "stood_above": 90 * MB, "written_s": 3.0, "copied": 5 * MB}
    figures |= {"alone_s": 5.0 - rank, "alone_above": 60 * MB}
    more = {"steps": 7, "step_s": 0.01, "step_meanwhile_s": 0.02, "bytes": 0 if rank else 200 * MB}
    compared = {} if equal is None else {"equal": equal}
    return {"rank": rank, "waited_s": waited_s, "above": above, **figures, **more, **compared}


def test_each_round_is_told_by_the_worker_that_has_most() -> None:
    lines = [line(1, 0.02, 70 * MB), line(0, 0.04, 60 * MB, True), line(0, 0.08, 80 * MB, False), line(1, 0.02, 9)]
    first, _, one, two, shared, last = report(lines)
    assert first.startswith("200 MB, 2 workers; peak PSS of a worker without checkpoints: 600 MB;")
    assert one.split() == "5.00 60 MB | 2.00 90 MB | 0.040 2.0% 3.0 70 MB 5 MB 7 20.0 10.0 equal".split()
    assert "0.080   4.0%" in two and two.endswith("DIFFERENT")
    assert shared == "With all workers writing, a checkpoint takes 0.40 of worker 0's time (median)."
    assert "training waits 3.0% of" in last and "grows by at most 80 MB" in last
