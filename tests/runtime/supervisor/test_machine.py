import signal

import pytest

from parallax.runtime.supervisor.frames import Exit, Pulse
from parallax.runtime.supervisor.limits import Limits
from parallax.runtime.supervisor.processes import Vitals, vitals_of
from parallax.runtime.supervisor.state_machine import (
    GRACE_S,
    HeartbeatReceived,
    KeepaliveReceived,
    Leave,
    PreemptionReceived,
    ReaderGone,
    SignalReceived,
    SignalWorker,
    SupervisorState,
    Tell,
    TellPreemption,
    TimePassed,
    VitalsSampled,
    WorkerEnded,
    step,
)

LIMITS = Limits(unheard_s=10)
BEAT = HeartbeatReceived({"kind": "alive", "runs": 1})


def actions_of(*events, every_s=1.0):
    """What is done at each of some events, one every second."""
    state, found = SupervisorState(0, 0.0, LIMITS), []
    for number, event in enumerate(events, 1):
        state, actions = step(state, event, number * every_s)
        found.append(actions)
    return found


def pulses_of(*events, every_s=1.0):
    actions = [action for of_one in actions_of(*events, every_s=every_s) for action in of_one]
    return [(a.frame.stopped_s, a.frame.quiet_s) for a in actions if isinstance(a, Tell) and isinstance(a.frame, Pulse)]


def looks(*letters, ticks=5):
    return [VitalsSampled(Vitals(letter, ticks)) for letter in letters]


def test_a_worker_that_beats_or_computes_or_could_run_is_alive():
    assert pulses_of(*(event for look in looks("S", "S", "S") for event in (BEAT, look)))[-1] == (0.0, 2.0)
    assert pulses_of(BEAT, *looks("S"), BEAT, *looks("S"))[-1] == (0.0, 2.0)
    assert pulses_of(BEAT, *(VitalsSampled(Vitals("S", ticks)) for ticks in range(9)))[-1] == (0.0, 0.0)
    assert pulses_of(BEAT, *looks(*"RRRRR"))[-1] == (0.0, 0.0)


def test_a_worker_without_any_sign_is_quiet_also_before_its_first_beat():
    assert pulses_of(BEAT, *looks(*"SSSD"))[1:] == [(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)]
    assert pulses_of(*looks(*"SSSD"))[1:] == [(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)]


def test_a_worker_that_a_signal_stopped_is_told_apart_and_may_go_on():
    assert pulses_of(*looks(*"STTTR"))[1:] == [(1.0, 0.0), (2.0, 0.0), (3.0, 0.0), (0.0, 0.0)]
    assert pulses_of(BEAT, *looks(*"ttt"))[-1] == (0.0, 0.0)  # a debugger holds it


def test_a_supervisor_that_did_not_look_counts_no_silence():
    assert pulses_of(*looks("T", "T"), every_s=1000.0) == [(2.0, 0.0), (4.0, 0.0)]


@pytest.mark.parametrize(
    "begin", [(KeepaliveReceived(), *looks(*10 * "S")), looks(*10 * "S")], ids=["after a keepalive", "ever"]
)
def test_a_supervisor_that_hears_nothing_ends_its_worker_and_tells_nobody(begin):
    assert actions_of(*begin, WorkerEnded(-9))[-2:] == [(SignalWorker(signal.SIGKILL),), (Leave(137, True),)]


def test_a_word_in_time_is_enough():
    events = [event for _ in range(5) for event in (*looks(*"SSS"), KeepaliveReceived())]
    assert SignalWorker(signal.SIGKILL) not in [action for one in actions_of(*events) for action in one]


def test_a_worker_is_told_once_of_a_preemption_which_is_a_word_of_the_launcher_too():
    events = [event for _ in range(5) for event in (*looks(*"SSS"), PreemptionReceived())]
    actions = [action for one in actions_of(*events) for action in one]
    assert actions.count(TellPreemption()) == 1 and SignalWorker(signal.SIGKILL) not in actions


def test_nobody_who_reads_is_the_end():
    assert actions_of(ReaderGone(), WorkerEnded(-9)) == [(SignalWorker(signal.SIGKILL),), (Leave(137, True),)]


def test_a_signal_is_passed_on_and_the_worker_killed_after_a_grace():
    state, actions = step(SupervisorState(0, 0.0), SignalReceived(signal.SIGTERM), 1.0)
    assert actions == (SignalWorker(signal.SIGTERM),)
    assert step(state, SignalReceived(signal.SIGTERM), 1.1)[1] == ()
    state, actions = step(state, TimePassed(), 1.0 + GRACE_S)
    assert actions == (SignalWorker(signal.SIGKILL),)
    assert step(state, TimePassed(), 9.0)[1] == ()
    assert step(state, WorkerEnded(-9), 9.0)[1] == (Tell(Exit(0, -9, told=True)), Leave(137, False))


def test_a_signal_that_mpirun_does_not_send_is_told_of():
    assert actions_of(SignalReceived(signal.SIGHUP), WorkerEnded(0))[-1] == (
        Tell(Exit(0, -1, told=True, by=1)),
        Leave(129, False),
    )


def test_the_vitals_of_a_process_that_is_not_there():
    assert vitals_of(2**22 + 1).state == "X"
