from parallax.runtime.launcher.failures.cause import BROKEN, HOST_LOST, RAISED, EndCause
from parallax.runtime.launcher.failures.first_failure import Ending, FailureDetector
from parallax.runtime.supervisor.frames import Control, Exit, Start

RULE = "-" * 74


def judge_of(*frames, num_workers=2):
    judge = FailureDetector(tuple(f"rank {rank}" for rank in range(num_workers)))
    for at, frame in enumerate(frames):
        judge = judge.observe(frame, float(at))
    return judge


def conclude(judge, mpirun_status=1, tail=()):
    return judge.conclude(mpirun_status, lambda rank: list(tail))


def heard(judge, *lines):
    """The judge after some lines, and what is shown of them."""
    shown = []
    for line in lines:
        judge, now = judge.process_line(line)
        shown += now
    return judge, shown


def test_all_ranks_well_is_a_job_well():
    assert conclude(judge_of(Exit(0, 0), Exit(1, 0)), mpirun_status=0) == Ending(0)


def test_the_first_to_fail_is_named_and_gives_the_status():
    judge = judge_of(Exit(1, 3), Exit(0, 7))
    assert (judge.has_failed(0.2), judge.has_failed(0.3)) == (False, True)
    assert conclude(judge) == Ending(
        3,
        "rank 1 failed with exit status 3. The job was ended. It wrote nothing to stderr.",
        EndCause(RAISED, (1,), "exit status 3"),
    )


def test_a_signal_is_named():
    result = conclude(judge_of(Exit(1, -11)), tail=["boom"])
    assert result.status == 139
    assert result.message == "rank 1 was killed by SIGSEGV. The job was ended.\nLast lines of rank 1 on stderr:\nboom"


def test_who_told_of_a_failure_first_is_the_cause_whoever_ends_first():
    judge = judge_of(Control(1, {"kind": "failed", "error": "Trace\nOops\n"}), Exit(0, 7))
    assert not judge.has_failed(1)
    judge = judge.observe(Exit(1, 1), 2)
    assert judge.has_failed(2)
    assert conclude(judge) == Ending(
        1,
        "rank 1 failed with exit status 1. The job was ended.\nError of rank 1:\nTrace\nOops",
        EndCause(RAISED, (1,), "Trace\nOops\n"),
    )


def failed(rank, what, place="train.py"):
    trace = f"Traceback (most recent call last):\n  File {place}\n{what}\n"
    return Control(rank, {"kind": "failed", "error": trace, "what": what})


def test_an_error_that_all_ranks_have_is_shown_once():
    shown = conclude(judge_of(*(failed(rank, "KeyError: 3") for rank in (1, 0, 2)), Exit(1, 1), num_workers=3)).message
    assert shown.splitlines() == [
        "rank 1 failed with exit status 1. The job was ended.",
        "Traceback of ranks 0-2:",
        "Traceback (most recent call last):",
        "  File train.py",
        "KeyError: 3",
    ]


def test_other_errors_that_came_after_it_get_a_line_each():
    after = ["UnknownError: Graph execution error:\n\nHorovod was shut down"] * 2 + ["A: 1", "B: 2", "C: 3", "D" * 300]
    told = [failed(0, "KeyError: 3"), *(failed(rank, what) for rank, what in enumerate(after, 1))]
    shown = conclude(judge_of(*told, Exit(0, 1), num_workers=7)).message.splitlines()
    assert shown[5:] == [
        "ranks 1-2 failed too: Horovod was shut down",
        "rank 3 failed too: A: 1",
        "rank 4 failed too: B: 2",
        "ranks 5-6 failed too, each with a different error.",
    ]
    assert len(shown) == 9


def test_a_killed_rank_is_the_cause_though_others_told_before():
    judge = judge_of(Control(0, {"kind": "failed", "error": "lost rank 1"}), Exit(0, 1), Exit(1, -9), num_workers=3)
    judge = judge.observe(Exit(2, -9), 3)
    assert conclude(judge).message.startswith("rank 1 was killed by SIGKILL")


def test_a_crash_after_a_failure_is_a_consequence():
    assert conclude(judge_of(Exit(0, 1), Exit(1, -11))).status == 1


def test_a_rank_that_told_of_a_failure_and_stays_is_not_waited_for_for_ever():
    judge = judge_of(Control(1, {"kind": "failed", "error": "x"}))
    assert (judge.knows_failure(), judge.has_failed(4.9), judge.has_failed(5.0)) == (True, False, True)
    judge = judge.observe(Exit(1, -15, told=True), 6)
    assert conclude(judge).status == 1


def test_a_failure_that_was_told_and_an_exit_of_0_is_still_a_failure():
    assert conclude(judge_of(Control(0, {"kind": "failed", "error": "x"}), Exit(0, 0), Exit(1, 0)), 0).status == 1


def test_a_rank_that_was_told_to_end_did_not_fail():
    assert not judge_of(Exit(1, -15, told=True)).knows_failure()


def test_the_last_traceback_on_stderr_is_shown_without_what_came_before():
    tail = ["warning", "Traceback (most recent call last):", "  ...", "ValueError: x"]
    assert conclude(judge_of(Exit(0, 1)), tail=tail).message.splitlines()[1:] == [
        "Last lines of rank 0 on stderr:",
        *tail[1:],
    ]


def test_a_killed_supervisor_comes_before_the_failures_that_follow():
    judge = judge_of(Control(0, {"kind": "failed", "error": "lost rank 1"}), Exit(0, 1))
    noticed = "mpirun noticed that process rank 1 with PID 0 on node h exited on signal 9 (Killed)."
    judge, shown = heard(judge, RULE, noticed, RULE)
    assert shown == []
    result = conclude(judge, 137)
    assert result.status == 137
    assert result.message.startswith("rank 1 is lost: its supervisor was killed by SIGKILL")


def test_mpiruns_notice_of_a_rank_that_told_itself_is_no_news():
    judge = judge_of(Exit(1, -9))
    judge, _ = heard(
        judge, RULE, "mpirun noticed that process rank 1 with PID 0 on node h exited on signal 9 (Killed).", RULE
    )
    assert conclude(judge, 137).message.startswith("rank 1 was killed by SIGKILL")


def test_mpiruns_own_death_is_named():
    result = conclude(judge_of(Exit(0, 0), num_workers=4), mpirun_status=-9)
    assert result.status == 137
    assert result.message.startswith("mpirun was killed by SIGKILL")
    assert result.message.endswith("before ranks 1-3 had ended.")


def test_a_rank_that_ends_without_a_word_is_an_error():
    assert conclude(judge_of(Exit(0, 0)), mpirun_status=0) == Ending(
        1, "mpirun ended before rank 1 had ended.", EndCause(BROKEN)
    )


def test_mpiruns_verdict_is_shown_only_when_no_rank_can_be_named():
    lines = [RULE, "Primary job  terminated normally, but 1 process returned", "a non-zero exit code.", RULE]
    unnamed = judge_of(Exit(0, 0), Exit(1, 0))
    unnamed, shown = heard(unnamed, *lines)
    assert shown == []
    assert conclude(unnamed, 5).message.splitlines()[1:] == lines[1:3]
    named = judge_of(Exit(1, 3))
    named, shown = heard(named, *lines)
    assert shown == []
    assert "Primary job" not in conclude(named, 3).message


def test_other_words_of_mpirun_are_shown():
    assert heard(judge_of(), "a warning", RULE, "MPI_ABORT was invoked", RULE, RULE, "x", RULE, "end")[1] == [
        "a warning",
        "MPI_ABORT was invoked",
        "x",
        "end",
    ]


def test_a_lost_host_is_named():
    judge = judge_of(Exit(0, -15, told=True))
    lines = ["ORTE has lost communication with a remote daemon.", "  Remote daemon: [[1,0],1] on node b"]
    judge, shown = heard(judge, *lines)
    assert shown == lines
    assert conclude(judge, mpirun_status=205) == Ending(
        1,
        "host b is lost: it is down, or mpirun's daemon there was killed. The job was ended.",
        EndCause(HOST_LOST, host="b"),
    )


def test_a_status_of_mpirun_itself_is_not_taken_for_a_signal():
    result = conclude(judge_of(), mpirun_status=255)
    assert (result.status, result.message) == (1, "mpirun failed with exit status 255 before ranks 0-1 had ended.")


def test_a_server_is_called_by_its_own_name():
    judge = FailureDetector(("rank 0", "rank 1", "server 0 on host b"))
    judge = judge.observe(Exit(2, -9), 0.0)
    assert conclude(judge).message.startswith("server 0 on host b was killed by SIGKILL")


def test_open_mpis_own_noise_is_not_shown():
    line = "[host0:00674] plm:rsh: Warning: setpgid(678,678) failed in parent with errno=Permission denied(13)"
    assert heard(judge_of(), line, "mpirun: Forwarding signal 23 to job")[1] == []


def test_a_supervisor_that_got_a_signal_is_named_with_it():
    result = conclude(judge_of(Exit(1, -15, told=True, by=1), Exit(0, -15, told=True)), 129)
    assert result.status == 129
    assert result.message.startswith("rank 1 is lost: its supervisor was ended by SIGHUP. The job was ended.")


def test_a_sigterm_to_one_supervisor_is_told_from_mpiruns_own():
    told = judge_of(Exit(1, -9, told=True), Exit(0, -15, told=True))
    words = (RULE, "mpirun detected that one or more processes exited", "  Process name: [[14667,1],1]", RULE)
    result = conclude(heard(told, *words)[0], 137)
    assert (result.status, result.message.startswith("rank 1 is lost: its supervisor was ended by SIGTERM")) == (143, 1)
    assert conclude(told, 143).message.startswith("mpirun failed with exit status 143")


def test_an_mpirun_that_ends_its_ranks_without_a_word_got_a_sigterm():
    told = judge_of(Start(0, 10, 11, "a"), Exit(1, -15, told=True))
    result = conclude(told, 1)
    assert (result.status, result.cause) == (143, EndCause(BROKEN))
    assert result.message == "mpirun got SIGTERM from another process. The job was ended."
    spoken, shown = heard(told, "ORTE_ERROR_LOG: Out of resource in file x.c")
    assert (
        len(shown) == 1 and conclude(spoken, 1).message == "mpirun failed with exit status 1 before rank 0 had ended."
    )
    assert conclude(judge_of(), 1).message == "mpirun failed with exit status 1 before ranks 0-1 had ended."
