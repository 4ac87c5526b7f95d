import signal

import pytest

from parallax.runtime.launcher.failures.cause import STALLED
from parallax.runtime.launcher.failures.end_of_job import (
    EXIT_PREEMPTED,
    EXIT_STALLED,
    GRACE_S,
    FrameReceived,
    FramesDrained,
    MpirunSignalled,
    SignalMpirun,
    StopsSampled,
    new_job,
    step,
)
from parallax.runtime.launcher.failures.liveness import MPIRUN, Silence, silence_text
from parallax.runtime.supervisor.frames import Control, Exit, Pulse, Start
from parallax.runtime.supervisor.limits import PREEMPTION, Limits
from parallax.runtime.supervisor.state_machine import ReaderGone, SignalReceived

LIMITS = Limits(stopped_s=3, frozen_s=5, silent_s=6, start_s=20)
TERM, KILL, SAVE = SignalMpirun(signal.SIGTERM), SignalMpirun(signal.SIGKILL), SignalMpirun(PREEMPTION)
SAVED = Control(0, {"kind": "preempted", "step": 12})
IN_RUN = {"kind": "in_run", "fetch": "train_op", "collectives": "d", "seconds": 2.0}
DOING = {"runs": 12, "fetch": "train_op", "seconds": 3.0}


class Job:
    """A job whose launcher looks every second, and whose ranks pulse just before, unless they are told not to."""

    def __init__(self, hosts=("a", "a"), workers=None, stall_timeout_s=100.0, grace_s=None):
        names = tuple(f"rank {rank}" for rank in range(len(hosts)))
        self.state = new_job(names, hosts, workers or len(hosts), stall_timeout_s, LIMITS, 0.0, grace_s)
        self.now_s, self.actions, self.pulses = 0.0, [], {rank: {} for rank in range(len(hosts))}
        for rank, host in enumerate(hosts):
            self.take(FrameReceived(Start(rank, 10 + rank, 20 + rank, host)))

    def take(self, *events):
        for event in events:
            self.state, actions = step(self.state, event, self.now_s)
            self.actions += [(self.now_s, action) for action in actions]

    def frames(self, *frames):
        self.take(*map(FrameReceived, frames))

    def run(self, seconds):
        for _ in range(seconds):
            self.now_s += 1.0
            self.frames(*(Pulse(rank, doing=DOING, **how) for rank, how in self.pulses.items()))
            self.take(FramesDrained())
        return self

    def conclude(self, mpirun_status=0):
        return self.state.conclude(mpirun_status, lambda rank: [])


def test_a_signal_to_mpirun_ends_the_job_and_is_named():
    job = Job()
    job.take(MpirunSignalled(signal.SIGHUP), MpirunSignalled(signal.SIGINT))
    assert job.run(1).actions == [(1.0, TERM)]
    ending = job.conclude(1)
    assert (ending.status, ending.cause.kind) == (128 + signal.SIGHUP, "mpirun ended")
    assert ending.message == "mpirun got SIGHUP from another process. The job was ended."


def test_a_failure_that_is_known_goes_before_a_signal_to_mpirun():
    job = Job()
    job.frames(Control(1, {"kind": "failed", "error": "KeyError: 'a'"}))
    job.take(MpirunSignalled(signal.SIGHUP))
    assert job.run(8).conclude(1).message.startswith("rank 1 failed.")


def test_ranks_that_only_compute_are_waited_for_however_long():
    job = Job()
    job.frames(Control(0, IN_RUN), Control(1, IN_RUN))
    assert job.run(10_000).actions == []


def test_a_checkpoint_folder_that_does_not_answer_ends_the_job_which_may_be_started_again():
    job = Job()
    job.frames(Control(0, IN_RUN), Control(1, {"kind": "overdue", "what": "The checkpoint of step 7 is overdue."}))
    assert job.run(1).actions[0][1] == TERM
    assert (job.conclude().status, job.conclude().cause.kind) == (EXIT_STALLED, STALLED)
    assert job.conclude().message == (
        "rank 1 waits for a disk: The checkpoint of step 7 is overdue. The job was ended."
    )


def test_a_worker_that_is_stopped_in_a_run_of_all_ends_the_job():
    job = Job()
    job.frames(Control(0, IN_RUN), Control(1, IN_RUN))
    job.pulses[1] = {"stopped_s": 3.0}
    assert job.run(1).actions == [(1.0, TERM)]
    assert job.conclude().status == EXIT_STALLED
    assert job.conclude().message == (
        "rank 1 is silent: a signal stopped its process 21 3 s ago, and it has not continued. The job was ended.\n"
        "  last heard of rank 1: 12 runs made, in a run of train_op for 3.0 s\n"
        "  meanwhile rank 0: in a run of train_op"
    )


def test_a_server_that_is_stopped_ends_the_job_too():
    job = Job(workers=1)
    job.pulses[1] = {"stopped_s": 4.0}
    assert job.run(1).actions == [(1.0, TERM)] and job.conclude().message.startswith("rank 1 is silent")


def test_a_worker_without_beat_and_processor_time_is_silent():
    job = Job()
    job.pulses[0] = {"quiet_s": 4.9}
    assert job.run(1).actions == []
    job.pulses[0] = {"quiet_s": 5.0}
    assert job.run(1).actions == [(2.0, TERM)]
    assert "rank 0 is silent: its process 20 has given no sign of life for 5 s" in job.conclude().message


def test_a_supervisor_of_which_nothing_comes_is_lost():
    job = Job().run(3)
    del job.pulses[1]
    assert job.run(5).actions == []
    assert job.run(1).actions == [(9.0, TERM)]
    assert "rank 1 is lost: its supervisor, process 11" in job.conclude().message


def test_a_host_of_which_nothing_comes_is_lost_and_not_one_of_its_ranks():
    job = Job(hosts=("a", "b", "b")).run(3)
    del job.pulses[1], job.pulses[2]
    job.run(6)
    assert (job.actions, job.conclude().status) == ([(9.0, TERM)], 1)
    assert job.conclude().message.startswith("host b is lost: nothing has arrived from it for 6 s")


def test_mpirun_is_killed_when_nothing_comes_from_anybody():
    job = Job(hosts=("a", "b")).run(3)
    job.pulses.clear()
    assert job.run(6).actions == [(9.0, KILL)]
    assert "mpirun is silent: nothing has arrived from any rank" in job.conclude().message


def test_mpirun_that_is_stopped_is_named_before_the_ranks_fall_silent():
    job = Job()
    job.pulses.clear()
    for _ in range(5):
        job.take(StopsSampled((), True))
        job.run(1)
    assert job.actions == [(4.0, KILL)]
    assert "mpirun is silent: a signal stopped it 3 s ago" in job.conclude().message


def test_a_launcher_that_did_not_look_itself_raises_no_alarm():
    job = Job().run(3)
    job.now_s += 1000.0
    assert job.run(3).actions == []


def test_a_rank_that_does_not_start_is_named():
    names = ("rank 0", "rank 1")
    job = Job()
    job.state = new_job(names, ("a", "a"), 2, 100.0, LIMITS, 0.0)
    job.frames(Start(0, 10, 20, "a"))
    del job.pulses[1]
    job.run(20)
    assert job.actions == [(20.0, TERM)]
    assert job.conclude().message.startswith("rank 1 did not start within 20 s of the others")


def test_a_rank_that_has_not_started_is_not_blamed_for_a_stall():
    names = ("rank 0", "rank 1", "rank 2")
    job = Job(hosts=("a", "b", "c"))
    job.state = new_job(names, ("a", "b", "c"), 3, 5.0, LIMITS, 0.0)
    job.frames(Start(0, 10, 20, "a"), Control(0, IN_RUN))
    del job.pulses[1], job.pulses[2]
    job.run(20)
    assert job.conclude().message.startswith("ranks 1-2 on b, c did not start within 20 s of the others")


def test_a_job_of_which_no_rank_ever_starts_ends():
    job = Job()
    job.state = new_job(("rank 0", "rank 1"), ("a", "b"), 2, 5.0, LIMITS, 0.0)
    job.pulses.clear()
    job.run(300)
    assert (job.actions, job.conclude().status) == ([(300.0, TERM)], EXIT_STALLED)
    words = "no rank has started for 300 s. mpirun hangs, or waits for hosts that do not respond: a, b. The job was"
    assert job.conclude().message.startswith(words)


def test_a_failure_is_the_cause_though_others_fall_silent_after_it():
    job = Job(hosts=("a", "b")).run(3)
    job.frames(Exit(0, 3))
    job.pulses.clear()
    assert job.run(1).actions == [(4.0, TERM)]
    assert job.conclude(3).status == 3


def test_a_failure_that_follows_a_host_that_fell_silent_is_its_consequence():
    job = Job(hosts=("a", "a", "b")).run(3)
    del job.pulses[2]
    job.run(4)
    job.frames(Control(0, {"kind": "failed", "error": "connection lost"}))
    assert job.run(1).actions == []
    assert job.run(1).actions == [(9.0, TERM)]
    assert job.conclude().message.startswith("host b is lost")


def test_a_rank_whose_pulse_is_late_is_not_blamed_for_a_stall():
    job = Job(hosts=("a", "b"), stall_timeout_s=7.0).run(3)
    job.frames(Control(0, IN_RUN))
    del job.pulses[1]
    job.run(6)
    assert job.conclude().message.startswith("host b is lost")


def test_mpirun_is_killed_after_a_grace_or_at_a_second_signal():
    job = Job()
    job.take(SignalReceived(signal.SIGINT))
    job.run(int(GRACE_S) + 2)
    assert job.actions == [(1.0, TERM), (1.0 + GRACE_S, KILL)]
    assert job.conclude().status == 130
    twice = Job()
    twice.take(SignalReceived(signal.SIGINT))
    twice.run(1)
    twice.take(SignalReceived(signal.SIGINT))
    assert twice.run(4).actions == [(1.0, TERM), (2.0, KILL)]


def preempted(grace_s=9.0):
    job = Job(grace_s=grace_s)
    job.take(SignalReceived(signal.SIGTERM))
    return job


def test_a_preempted_job_is_told_again_until_it_has_saved_and_ends_by_itself():
    job = preempted().run(4)
    assert job.actions == [(1.0, SAVE), (3.0, SAVE)]
    job.frames(SAVED, Exit(0, 0), Exit(1, 0))
    assert job.run(3).actions == [(1.0, SAVE), (3.0, SAVE)]
    assert job.conclude().status == EXIT_PREEMPTED
    assert job.conclude().message == "preempted at step 12, saved. Start the job again to continue from there."


def test_a_preempted_job_that_has_saved_and_stays_is_ended():
    job = preempted().run(2)
    job.frames(SAVED)
    assert job.run(12).actions == [(1.0, SAVE), (10.0, TERM)]
    assert job.conclude(1).status == EXIT_PREEMPTED


def test_a_preempted_job_that_does_not_save_in_time_is_ended():
    job = preempted(grace_s=3.0).run(9)
    assert job.actions == [(1.0, SAVE), (3.0, SAVE), (4.0, TERM), (4.0 + GRACE_S, KILL)]
    words = "the launcher got SIGTERM, and the workers have not saved within 3 s. The job was ended."
    assert (job.conclude(1).status, job.conclude(1).message) == (143, words)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_a_preempted_job_and_a_third_kills_mpirun(number):
    job = preempted().run(1)
    job.take(SignalReceived(number))
    job.run(2)
    assert job.actions == [(1.0, SAVE), (2.0, TERM)]
    job.take(SignalReceived(number))
    assert job.run(1).actions == [(1.0, SAVE), (2.0, TERM), (4.0, KILL)]
    assert (job.conclude(1).status, job.conclude(1).message) == (143, "the launcher got SIGTERM. The job was ended.")


def test_only_sigterm_is_a_preemption_and_only_where_workers_can_save():
    interrupted = Job(grace_s=9.0)
    interrupted.take(SignalReceived(signal.SIGINT))
    assert (interrupted.run(1).actions, interrupted.conclude().status) == ([(1.0, TERM)], 130)
    without = Job()
    without.take(SignalReceived(signal.SIGTERM))
    assert (without.run(1).actions, without.conclude().status) == ([(1.0, TERM)], 143)


def test_a_failure_while_a_preempted_job_saves_is_its_end():
    job = preempted().run(2)
    job.frames(Exit(1, -signal.SIGKILL))
    assert job.run(1).actions == [(1.0, SAVE), (3.0, SAVE), (3.0, TERM)]
    assert (job.conclude(1).status, job.conclude(1).message[:27]) == (137, "rank 1 was killed by SIGKIL")


def test_a_preempted_job_that_comes_to_its_end_first_has_ended_well():
    job = preempted().run(2)
    job.frames(Exit(0, 0), Exit(1, 0))
    assert job.conclude().status == 0


def test_a_launcher_whose_output_nobody_reads_ends_the_job():
    job = Job()
    job.take(ReaderGone())
    assert (job.run(1).actions, job.conclude().status) == ([(1.0, TERM)], 141)


@pytest.mark.parametrize("ranks", [(0, 1), ()])
def test_words_are_found_also_of_ranks_that_never_told(ranks):
    state = new_job(("rank 0", "rank 1"), ("a", "b"), 2, 100.0, LIMITS, 0.0)
    assert silence_text(Silence(MPIRUN, ranks, 6.0), state.alive, str).startswith("mpirun is silent")
    assert "or this machine's network is cut." in silence_text(Silence(MPIRUN, ranks, 6.0), state.alive, str)
    here = new_job(("rank 0", "rank 1"), ("a", "a"), 2, 100.0, LIMITS, 0.0)
    words = "It hangs, or this machine has too few cores, or too little memory, for 2 ranks: start fewer workers."
    assert words in silence_text(Silence(MPIRUN, ranks, 6.0), here.alive, str)
