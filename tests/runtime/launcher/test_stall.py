from parallax.report.text import name_ranks
from parallax.runtime.launcher.failures.stall import StallWatch


def in_run(fetch="train_op", collectives="d1", seconds=2.0):
    return {"kind": "in_run", "fetch": fetch, "collectives": collectives, "seconds": seconds}


def watch_of(*observed, num_workers=2, timeout_s=60.0):
    watch = StallWatch.of(num_workers, timeout_s)
    for rank, message, now_s in observed:
        watch = watch.observe(rank, message, now_s)
    return watch


def test_nothing_told_is_no_stall():
    assert watch_of().verdict(1e6) is None


def test_a_rank_waits_for_one_that_ended_its_loop():
    watch = watch_of((1, {"kind": "finished", "runs": 120}, 9.0), (0, in_run(seconds=2.0), 12.0))
    assert watch.verdict(69.9) is None  # the run began at 10
    stall = watch.verdict(70.0)
    assert (stall.fetch, stall.waiting, stall.waited_s) == ("train_op", (0,), 60.0)
    assert stall.absent == ((1, "ended its loop after 120 runs"),)


def test_the_message_of_a_stall():
    watch = watch_of(
        (0, in_run(), 2.0),
        (1, in_run(), 3.0),
        (2, in_run("accuracy", "d2"), 4.0),
        (3, {"kind": "finished", "runs": 7}, 1.0),
        num_workers=6,
    )
    assert str(watch.verdict(61.0)) == (
        "a run that every rank must take part in has waited 61 s for ranks that have not joined it.\n"
        "  fetch: train_op\n"
        "  waiting: ranks 0-1\n"
        "  missing: rank 2: waits in another fetch: accuracy\n"
        "  missing: rank 3: ended its loop after 7 runs\n"
        "  missing: ranks 4-5: is not in session.run\n"
        "Run the same fetches equally often on every rank, "
        "or raise the stall timeout (60 s) if a rank is merely slow."
    )


def test_all_ranks_in_the_same_run_is_no_stall_however_long():
    watch = watch_of((0, in_run(), 2.0), (1, in_run(), 2.0))
    assert watch.verdict(1e6) is None


def test_the_same_collectives_under_another_fetch_are_the_same_run():
    watch = watch_of((0, in_run("loss, train_op"), 2.0), (1, in_run("train_op"), 2.0))
    assert watch.verdict(1e6) is None


def test_ranks_in_runs_with_other_collectives_wait_for_each_other():
    watch = watch_of((0, in_run("a", "d1"), 12.0), (1, in_run("b", "d2"), 2.0))
    assert watch.verdict(69.0) is None  # the second waits since 10
    stall = watch.verdict(70.0)
    assert (stall.fetch, stall.waiting) == ("b", (1,))
    assert stall.absent == ((0, "waits in another fetch: a"),)


def test_of_a_long_run_that_ends_on_all_one_rank_may_tell_first():
    watch = watch_of((0, in_run(seconds=200.0), 200.0), (1, in_run(seconds=200.0), 200.0))
    watch = watch.observe(0, {"kind": "run_done"}, 200.5)
    assert watch.verdict(201.0) is None and watch.verdict(260.5) is not None
    ended = watch.observe_exit(0, 0, 201.0)
    assert ended.verdict(202.0) is None


def test_a_run_that_returned_waits_no_more():
    watch = watch_of((0, in_run(), 2.0), (0, {"kind": "run_done"}, 50.0))
    assert watch.verdict(61.0) is None


def test_a_run_told_again_keeps_its_start_and_a_new_one_has_its_own():
    watch = watch_of((0, in_run(seconds=2.0), 2.0), (0, in_run(seconds=52.0), 52.0))
    assert watch.verdict(60.0).waited_s == 60.0
    watch = watch.observe(0, in_run(seconds=2.0), 72.0)
    assert watch.verdict(80.0) is None


def test_a_rank_whose_process_ended_does_not_come():
    watch = watch_of((0, in_run(), 2.0))
    watch = watch.observe_exit(1, 0, 9.0)
    assert watch.verdict(69.0).absent == ((1, "has ended with exit status 0"),)


def test_the_end_of_a_process_does_not_hide_how_often_it_ran():
    watch = watch_of((0, in_run(), 2.0), (1, {"kind": "finished", "runs": 3}, 2.0))
    watch = watch.observe_exit(1, 0, 9.0)
    assert watch.verdict(62.0).absent == ((1, "ended its loop after 3 runs"),)


def test_a_patient_run_waits_for_who_is_at_anything_and_not_for_who_has_ended():
    patient = {**in_run("the last checkpoint", "end"), "patient": True}
    assert watch_of((0, patient, 2.0)).verdict(1e6) is None
    stall = watch_of((0, patient, 2.0), (1, in_run(), 2.0)).verdict(61.0)
    assert (stall.fetch, stall.waiting) == ("train_op", (1,))  # it is the other that waits in vain
    stall = watch_of((0, patient, 2.0), (1, {"kind": "finished", "runs": 3}, 2.0)).verdict(62.0)
    assert (stall.fetch, stall.waiting) == ("the last checkpoint", (0,))
    late = watch_of((0, patient, 2.0), (1, {"kind": "finished", "runs": 3}, 300.0))
    assert late.verdict(359.0) is None  # it comes to the checkpoint after its loop, and has the timeout for that
    assert late.verdict(360.0).waited_s == 360.0


def test_an_infinite_timeout_never_stalls():
    assert watch_of((0, in_run(), 2.0), timeout_s=float("inf")).verdict(1e9) is None


def test_failures_and_unknown_messages_say_nothing_about_runs():
    watch = watch_of((0, {"kind": "failed", "error": "x"}, 1.0), (1, {"kind": "hello"}, 1.0))
    assert watch.verdict(1e6) is None


def test_ranks_are_named_in_spans():
    assert [name_ranks(ranks) for ranks in ([3], [0, 1], [0, 1, 2, 5, 7, 8])] == [
        "rank 3",
        "ranks 0-1",
        "ranks 0-2, 5, 7-8",
    ]


def test_a_server_never_stalls_and_nobody_waits_for_one():
    watch = watch_of((0, in_run(), 2.0), (1, in_run(), 2.0), (2, in_run(), 0.0))
    watch = watch.observe_exit(2, 1, 9.0)
    assert watch.verdict(1e6) is None


def test_what_one_rank_alone_fetches_and_all_must_is_named_on_either_side():
    trained = {"train_op": ["a1 ids", "b2 grad"]}
    alone = {
        **in_run("train_op, sum:0", "d2"),
        "for_all": {**trained, "sum:0": ["a1 ids", "b2 grad", "c3 norm/L2Loss"]},
    }
    others = {**in_run("train_op", "d1"), "for_all": trained}
    first = watch_of((0, alone, 2.0), (1, others, 3.0)).verdict(61.0)
    assert first.for_all == ("sum:0 (by norm/L2Loss)",)
    assert "  fetch: train_op, sum:0\n  of these, every rank must fetch: sum:0 (by norm/L2Loss)\n" in str(first)
    assert first.absent == ((1, "waits in another fetch: train_op"),)
    second = watch_of((0, alone, 3.0), (1, others, 2.0)).verdict(61.0)
    text = "waits in another fetch: train_op, sum:0; every rank must fetch sum:0 (by norm/L2Loss)"
    assert (second.for_all, second.absent) == ((), ((0, text),))


def test_of_many_fetches_those_are_named_for_which_all_must_come():
    alone = {**in_run("a, b, train_op"), "for_all": {"a": ["a1 ids"], "train_op": ["a1 ids", "b2 grad"]}}
    stall = watch_of((0, alone, 2.0)).verdict(61.0)
    assert stall.for_all == ("train_op (by grad, ids)",)
    only = watch_of((0, {**in_run("train_op"), "for_all": {"train_op": [f"a{n} op{n}" for n in range(9)]}}, 2.0))
    assert "every rank must fetch" not in str(only.verdict(61.0))


def after_failures(*failures, seconds=2.0):
    return {**in_run(seconds=seconds), "failures": failures}


def test_a_rank_that_caught_a_failure_and_went_on_does_not_meet_those_in_the_run_that_failed():
    caught = after_failures("run 12: InvalidArgumentError: Incompatible shapes")
    stall = watch_of((0, in_run(), 2.0), (1, caught, 3.0)).verdict(61.0)
    reason = "is a run ahead: it caught an error and continued (run 12: InvalidArgumentError: Incompatible shapes)"
    assert (stall.fetch, stall.waiting, stall.absent) == ("train_op", (0,), ((1, reason),))
    behind = watch_of((0, in_run(), 3.0), (1, caught, 2.0)).verdict(61.0)
    assert (behind.waiting, behind.absent[0][0]) == ((1,), 0)
    assert behind.absent[0][1].startswith("is a run behind, in one that failed on the waiting ranks (run 12")


def test_ranks_that_all_caught_failures_are_in_the_same_run():
    assert watch_of((0, after_failures("run 3: a"), 2.0), (1, after_failures("run 3: b"), 2.0)).verdict(1e6) is None
