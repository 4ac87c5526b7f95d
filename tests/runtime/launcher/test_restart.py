"""Which ends of a job are worth another start, when, on which hosts; and how far a job has come."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from parallax.runtime.launcher.failures import cause
from parallax.runtime.launcher.failures.cause import EndCause, Progress
from parallax.runtime.launcher.failures.end_of_job import FrameReceived, FramesDrained, StopsSampled, new_job, step
from parallax.runtime.launcher.launch import JobEnd
from parallax.runtime.launcher.reach import HostsNotReady
from parallax.runtime.launcher.restarts import restart_policy
from parallax.runtime.launcher.restarts.restart_loop import RestartOptions, launch_restarting
from parallax.runtime.launcher.restarts.restart_policy import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    FailedJob,
    GiveUp,
    RestartState,
    StartAgain,
    after_failure,
    choose_hosts,
    describe_hosts,
)
from parallax.runtime.supervisor.frames import Control, Exit, Pulse, Start
from parallax.runtime.supervisor.limits import Limits
from parallax.runtime.supervisor.state_machine import ReaderGone, SignalReceived

STARTED = Progress(has_started=True)
RAN = Progress(has_started=True, has_run=True)
SAVED = Progress(has_started=True, has_run=True, step=8, has_saved=True)
LOADED = replace(SAVED, has_saved=False)
BOOM = EndCause(cause.RAISED, (0,), "ValueError: boom")


def failed(kind=cause.KILLED, progress=SAVED, host="", what=""):
    return FailedJob(EndCause(kind, (1,), what), "rank 1 was killed by SIGKILL", progress, host)


def after(*jobs, state=None, **how):
    state = state or RestartState(**{"most": 3, "hosts": ("a", "b", "c"), **how})
    for job in jobs:
        state, decision = after_failure(state, job)
    return state, decision


def test_the_user_is_told_the_count_the_reason_and_the_step():
    _, decision = after(failed())
    assert decision == StartAgain(0.0, "Restart 1 of 3: rank 1 was killed by SIGKILL. Continues from step 8.")
    _, decision = after(failed(), failed(progress=LOADED))
    assert decision == StartAgain(2.0, "Restart 2 of 3 in 2 s: rank 1 was killed by SIGKILL. Continues from step 8.")


@pytest.mark.parametrize("kind", [cause.KILLED, cause.LOST, cause.HOST_LOST, cause.SILENT, cause.STALLED, cause.BROKEN])
@pytest.mark.parametrize("progress", [STARTED, RAN, SAVED])
def test_what_came_from_outside_is_worth_a_restart_from_the_first_process_on(kind, progress):
    assert isinstance(after(failed(kind, progress))[1], StartAgain)


@pytest.mark.parametrize("kind", [cause.STOPPED, cause.WELL])
def test_a_job_that_was_stopped_or_has_ended_well_is_not_started_again(kind):
    assert after(failed(kind))[1] == GiveUp()


@pytest.mark.parametrize("kind", [cause.BROKEN, cause.SILENT, cause.RAISED])
def test_a_job_of_which_nothing_has_started_is_not_started_again(kind):
    text = "The job is not started again: none of its processes has started."
    assert after(failed(kind, Progress()))[1] == GiveUp(text)


def test_a_later_job_that_does_not_start_is_tried_again():
    assert isinstance(after(failed(), failed(cause.BROKEN, Progress()))[1], StartAgain)


def test_an_exception_before_the_first_step_would_come_again():
    assert isinstance(after(FailedJob(BOOM, "boom", STARTED))[1], GiveUp)
    assert isinstance(after(FailedJob(BOOM, "boom", RAN))[1], StartAgain)


def test_the_same_exception_twice_without_a_checkpoint_between_ends_it():
    first, second = FailedJob(BOOM, "boom", SAVED), FailedJob(replace(BOOM, ranks=(1,)), "boom", LOADED)
    text = "The job is not started again: it failed in the same way twice after the checkpoint of step 8."
    assert after(first, second)[1] == GiveUp(text)
    assert isinstance(after(first, replace(second, progress=SAVED))[1], StartAgain)
    other = replace(second, cause=replace(BOOM, what="ValueError: other"))
    assert isinstance(after(first, other)[1], StartAgain)
    assert isinstance(after(first, failed(progress=LOADED), second)[1], StartAgain)  # not twice in a row


def test_there_are_no_more_restarts_than_were_asked_for():
    state, decision = after(failed(), failed(), most=2)
    assert isinstance(decision, StartAgain) and state.restarts == 2
    assert after(failed(), state=state)[1] == GiveUp("The job is not started again: max_restarts is 2.")


def test_quick_failures_wait_longer_and_longer_until_a_checkpoint_is_written():
    state, waits_s = RestartState(most=99, hosts=("a",)), []
    for progress in [SAVED, LOADED, LOADED, LOADED, SAVED, LOADED, *[LOADED] * 12]:
        state, decision = after(failed(progress=progress), state=state)
        waits_s.append(decision.wait_s)
    assert waits_s[:6] == [0, FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S, 0, FIRST_WAIT_S]
    assert waits_s[-1] == LONGEST_WAIT_S


def test_where_it_goes_on_from_is_told_as_far_as_it_is_known():
    assert after(failed(progress=RAN))[1].text.endswith("Starts from the beginning, since there is no checkpoint yet.")
    found = after(failed(progress=RAN), has_checkpoints=False)[1]
    assert found.text.endswith("Continues from what the script itself has saved.")
    assert after(failed(), failed(progress=STARTED))[1].text.endswith("Continues from step 8.")
    assert after(failed(cause.SILENT))[1].text.endswith("Continues from step 8 or later.")


def test_without_min_hosts_all_hosts_are_tried_again():
    state, _ = after(failed(cause.HOST_LOST, host="b"))
    assert choose_hosts(state, ("a",)) == (("a", "b", "c"), "")


def test_a_host_that_does_not_answer_is_left_out_and_taken_back_when_it_does():
    state, _ = after(failed(cause.HOST_LOST, host="b"), min_hosts=2)
    assert choose_hosts(state, ("a", "c")) == (("a", "c"), "")
    assert choose_hosts(state, ("a", "b", "c")) == (("a", "b", "c"), "")
    found = choose_hosts(state, ("a",))
    assert found == ((), "only 1 of 3 hosts respond, and min_hosts is 2. Missing: b, c.")


def test_a_host_that_fails_twice_in_a_row_is_left_out_until_the_others_have_written_a_checkpoint():
    everywhere = ("a", "b", "c")
    state, _ = after(failed(host="b"), min_hosts=2, most=9)
    assert choose_hosts(state, everywhere)[0] == everywhere
    state, _ = after(failed(host="b", progress=LOADED), state=state)
    assert choose_hosts(state, everywhere)[0] == ("a", "c")
    assert choose_hosts(state, ("a", "b"))[0] == ("a", "b")  # one that fails is better than none
    without, _ = after(failed(host="c", progress=LOADED), state=state)
    assert choose_hosts(without, everywhere)[0] == ("a", "c")
    state, _ = after(failed(host="c"), state=state)
    assert choose_hosts(state, everywhere)[0] == everywhere


def test_a_failure_of_the_script_or_of_all_blames_no_host():
    state, _ = after(failed(cause.STALLED, host="b"), failed(cause.STALLED, LOADED, "b"), min_hosts=1)
    assert choose_hosts(state, ("a", "b", "c"))[0] == ("a", "b", "c")


def test_the_user_is_told_which_hosts_are_left_out_and_taken_back():
    state = RestartState(3, ("a", "b", "c"), 1)
    assert describe_hosts(state, ("a", "b"), ("a", "b")) == ""
    text = "Left out: b. The job continues on 2 of 3 hosts."
    assert describe_hosts(state, ("a", "b", "c"), ("a", "c")) == text
    text = "Left out: a. Taken back: b, c. The job continues on 2 of 3 hosts."
    assert describe_hosts(state, ("a",), ("b", "c")) == text


def test_how_far_a_job_is_follows_from_its_frames():
    progress = Progress()
    seen = []
    for frame in [
        Start(0, 1, 2, "a"),
        Pulse(0, doing={"serves": True}),
        Control(0, {"kind": "saved", "step": 0, "loaded": False}),
        Pulse(0, doing={"runs": 3}),
        Control(0, {"kind": "saved", "step": 5, "loaded": False}),
    ]:
        progress = progress.observe(frame)
        seen.append((progress.has_started, progress.has_run, progress.step, progress.has_saved))
    assert seen == [
        (True, False, None, False),
        (True, False, None, False),
        (True, False, 0, True),
        (True, True, 0, True),
        (True, True, 5, True),
    ]
    loaded = Progress().observe(Control(0, {"kind": "saved", "step": 5, "loaded": True}))
    assert (loaded.step, loaded.has_saved) == (5, False)


SILENCE = Limits(stopped_s=3, frozen_s=5, silent_s=6, start_s=20)
IN_RUN = {"kind": "in_run", "fetch": "train_op", "collectives": "d", "seconds": 2.0}


def cause_of(*events, seconds=0, pulses=(0, 1), hosts=("a", "b")):
    """The cause of a job's end, after these events and so many seconds in which some ranks pulse."""
    state = new_job(("rank 0", "rank 1"), hosts, 2, 30.0, SILENCE, 0.0)
    for event in [*(Start(rank, 10, 20, host) for rank, host in enumerate(hosts)), *events]:
        named = FrameReceived(event) if isinstance(event, Start | Exit | Control | Pulse) else event
        state, _ = step(state, named, 0.0)
    for second in range(1, seconds + 1):
        for rank in pulses:
            state, _ = step(state, FrameReceived(Pulse(rank)), float(second))
        state, _ = step(state, FramesDrained(), float(second))
    state, _ = step(state, FramesDrained(), float(seconds))
    return state.conclude(0, lambda rank: []).cause


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (cause_of(Exit(0, 0), Exit(1, 0)), EndCause()),
        (cause_of(Exit(1, -9)), EndCause(cause.KILLED, (1,))),
        (cause_of(Exit(1, 3)), EndCause(cause.RAISED, (1,), "exit status 3")),
        (cause_of(Control(0, {"kind": "failed", "error": "E at 1", "what": "E"}), Exit(0, 1)),
         EndCause(cause.RAISED, (0,), "E")),
        (cause_of(Exit(1, -1, True, 1)), EndCause(cause.LOST, (1,))),
        (cause_of(SignalReceived(15)), EndCause(cause.STOPPED)),
        (cause_of(ReaderGone()), EndCause(cause.STOPPED)),
        (cause_of(seconds=8, pulses=(0,)), EndCause(cause.HOST_LOST, (1,))),
        (cause_of(Pulse(1, stopped_s=4.0), seconds=1, pulses=(0,)), EndCause(cause.SILENT, (1,))),
        (cause_of(*[StopsSampled((), True)] * 2, seconds=8, pulses=()), EndCause(cause.SILENT, (0, 1))),
        (cause_of(Control(0, IN_RUN), seconds=40), EndCause(cause.STALLED)),
    ],
)  # fmt: skip
def test_of_what_kind_an_end_is(found, wanted):
    assert found == wanted


def test_a_host_that_is_not_ready_at_a_later_start_is_lost_and_tried_again(monkeypatch, capsys):
    monkeypatch.setattr(restart_policy, "FIRST_WAIT_S", 0.01)
    job = SimpleNamespace(host_of=lambda rank: "ab"[rank], num_ranks=2, output_folder=None)
    not_ready = HostsNotReady("host b cannot be reached")
    not_ready.hosts = ("b",)
    killed = JobEnd(137, cause=EndCause(cause.KILLED, (1,)), reason="rank 1 was killed", progress=SAVED)
    ends = iter([killed, not_ready, JobEnd(0)])

    def launch(*_):
        end = next(ends)
        if isinstance(end, HostsNotReady):
            raise end
        return end

    assert launch_restarting(RestartOptions(3), ("a", "b"), lambda hosts: job, launch).status == 0
    told = capsys.readouterr().err
    assert "Restart 1 of 3: rank 1 was killed" in told and "Restart 2 of 3" in told and "host b cannot" in told


def test_a_host_that_is_not_ready_at_the_first_start_is_an_error():
    def launch(*_):
        raise HostsNotReady("host b cannot be reached")

    with pytest.raises(HostsNotReady):
        launch_restarting(RestartOptions(3), ("a", "b"), lambda hosts: SimpleNamespace(), launch)
