"""Traces from step stats made by hand; times are microseconds, small enough to add up by eye."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from parallax.analysis.timing.intervals import union
from parallax.base.errors import ConfigError
from parallax.runtime.trace.chrome import trace_text
from parallax.runtime.trace.clocks import SAME_CLOCK, Offset, Ping, best_offset, offset_at
from parallax.runtime.trace.offsets import Bounds, offset_between, server_bounds
from parallax.runtime.trace.ops import KINDS, Step, kind_of, read_step
from parallax.runtime.trace.options import make_ready, trace_options
from parallax.runtime.trace.rows import correct_times, lanes, rank_trace
from parallax.runtime.trace.summary import outside, slowest, summary
from parallax.runtime.trace.waits import arrivals, last_arrivals, waits

WORKER, SERVER = "/job:worker/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0"


def node(name, op, start_us, end_us):
    return SimpleNamespace(
        node_name=name,
        timeline_label=f"{name} = {op}(x, ^y)",
        all_start_micros=start_us - 2,
        op_start_rel_micros=2,
        op_end_rel_micros=end_us - start_us + 2,
        memory=[],
    )


def received(what, sender, receiver, start_us, end_us):
    found = node("RecvTensor", "", start_us, end_us)
    found.timeline_label = f"[64B] [1.1Mb/s] edge_7_{what} from {sender} to {receiver}"
    return found


def step(number, *nodes, on_server=()):
    devices = [
        SimpleNamespace(device=WORKER, node_stats=list(nodes)),
        SimpleNamespace(device=SERVER, node_stats=list(on_server)),
    ]
    return read_step(number, SimpleNamespace(dev_stats=devices))


def pulled(number, start_us, end_us):
    """A step that computes until a pull begins."""
    return step(
        number,
        node("matmul", "MatMul", start_us - 50, start_us),
        node("parallax/pull_0/all_to_all", "ParallaxAllToAll", start_us, end_us),
    )


def traces_of(*steps_by_rank, offsets=None, within_host=frozenset(), hosts=None):
    """What the hook does with the steps of all ranks."""
    offsets = offsets or [SAME_CLOCK] * len(steps_by_rank)
    hosts = hosts or [0] * len(steps_by_rank)
    mine = [[correct_times(s, [o], {}) for s in steps] for steps, o in zip(steps_by_rank, offsets, strict=True)]
    came = [arrivals(steps, within_host, host) for steps, host in zip(mine, hosts, strict=True)]
    last = last_arrivals(came)
    return [
        rank_trace(rank, f"h{host}", offsets[rank], steps, waits(rank, came[rank], last))
        for rank, (steps, host) in enumerate(zip(mine, hosts, strict=True))
    ]


# --- ops ---


@pytest.mark.parametrize(
    ("name", "op", "kind"),
    [
        ("parallax/pull_12/Unique", "Unique", "pull"),
        ("parallax/refresh/Assign", "Assign", "pull"),
        ("parallax/push_0/all_to_all", "ParallaxAllToAll", "push"),
        ("parallax/collect/emb/all_gather", "HorovodAllgather", "push"),
        ("parallax/accumulate/0/0/give", "SparseAccumulatorApplyGradient", "push"),
        ("parallax/all_reduce/all_reduce_1", "ParallaxAllReduce", "all-reduce"),
        ("parallax/joined_0", "ParallaxAllReduce", "all-reduce"),
        ("parallax/lock/MutexLock", "MutexLock", "waiting"),
        ("parallax/scale/mul", "Mul", "compute"),
        ("my/parallax/pull_0/x", "Mul", "compute"),
        ("mine", "HorovodAllreduce", "all-reduce"),
    ],
)
def test_the_kind_of_an_op_comes_from_its_scope(name, op, kind):
    assert kind_of(name, op) == kind


def test_an_op_lasts_from_its_start_to_its_end_and_not_while_it_is_scheduled():
    (op,) = step(3, node("a", "MatMul", 100, 130)).ops
    assert (op.name, op.type, op.start_us, op.end_us, op.server) == ("a", "MatMul", 100, 130, None)


def test_what_stands_by_on_a_server_is_no_work():
    taken = node("parallax/meet/0/take", "QueueDequeueV2", 0, 900)
    assert step(0, on_server=[taken]).ops == ()
    assert len(step(0, node("input", "QueueDequeueV2", 0, 900)).ops) == 1, "the user's own is work of the step"


def test_a_transfer_is_named_by_what_came():
    ops = step(
        0,
        received("parallax/pull_0/GatherV2", SERVER, WORKER, 40, 50),
        on_server=[received("gradients/MatMul", WORKER, SERVER, 10, 20)],
    ).ops
    assert [(op.name, op.kind, op.server) for op in ops] == [
        ("gradients/MatMul", "push", 1),
        ("parallax/pull_0/GatherV2", "pull", None),
    ]


def test_memory_that_outlives_a_step_is_not_of_its_tensors():
    records = [SimpleNamespace(alloc_micros=at, alloc_bytes=size) for at, size in [(1, 8), (2, 4), (5, -8), (7, 8)]]
    made = node("a", "MatMul", 0, 3)
    made.memory = [SimpleNamespace(allocation_records=records)]
    assert step(0, made).allocations == ((1, 8), (5, -8))


# --- offsets ---


def test_the_question_that_came_back_soonest_gives_the_offset():
    # Rank 0 is 1000 ahead; the first answer was delayed on its way back.
    found = best_offset([Ping(0, 1005, 90), Ping(100, 1110, 120)])
    assert found == Offset(at_us=110, offset_us=1000, uncertainty_us=10)


@pytest.mark.parametrize(("asked_us", "answered_us", "back_us"), [(3, 0, 17), (17, 0, 3), (10, 5, 10)])
def test_the_true_offset_is_within_the_uncertainty_whichever_way_took_longer(asked_us, answered_us, back_us):
    ping = Ping(0, -500 + asked_us, asked_us + answered_us + back_us)
    found = best_offset([ping])
    assert abs(found.offset_us - -500) <= found.uncertainty_us


def test_an_offset_changes_evenly_between_two_measurements():
    offsets = [Offset(100, 10, 1), Offset(200, 30, 1)]
    assert [offset_at(offsets, at) for at in (50, 100, 150, 200, 900)] == [10, 10, 20, 30, 30]
    assert offset_at([SAME_CLOCK], 150) == 0


def test_a_servers_clock_lies_between_what_it_received_and_what_it_sent():
    # Its clock is 1000 behind.
    one = step(
        0,
        node("ids", "Unique", 1000, 1010),
        received("rows", SERVER, WORKER, 1040, 1050),
        on_server=[received("ids", WORKER, SERVER, 15, 20), node("rows", "GatherV2", 20, 30)],
    )
    bounds = server_bounds([one], own_offset_us=0)
    assert bounds == {1: Bounds(1010 - 20, 1050 - 30)}
    assert offset_between(bounds[1]) == Offset(0, 1005, 15)
    assert offset_between(Bounds(low_us=3)) is None


# --- waits ---


def test_ranks_wait_until_the_last_has_come_and_the_rest_is_the_exchange():
    early, late = traces_of([pulled(7, 100, 340)], [pulled(7, 300, 340)])
    assert [(w.start_us, w.end_us, w.whom) for w in early.waits] == [(100, 300, 1)] and late.waits == ()
    assert early.steps[0].us_by_kind == {"pull": 40, "compute": 50, "push": 0, "all-reduce": 0, "waiting": 200}
    assert late.steps[0].us_by_kind == {"pull": 40, "compute": 50, "push": 0, "all-reduce": 0, "waiting": 0}


def test_a_clock_that_is_behind_is_not_taken_for_a_rank_that_is_early():
    ahead, behind = traces_of([pulled(7, 5100, 5340)], [pulled(7, 300, 340)], offsets=[SAME_CLOCK, Offset(0, 5000, 1)])
    assert [w.whom for w in ahead.waits] == [1] and behind.waits == ()
    assert behind.steps[0].start_us == 5250 and behind.steps[0].end_us == 5340


def test_an_op_that_runs_twice_in_a_step_is_two_meetings():
    name = "parallax/pull_0/all_to_all"
    first = step(0, node(name, "ParallaxAllToAll", 0, 30), node(name, "ParallaxAllToAll", 50, 90))
    second = step(0, node(name, "ParallaxAllToAll", 20, 30), node(name, "ParallaxAllToAll", 40, 90))
    early, late = traces_of([first], [second])
    assert [(w.start_us, w.end_us, w.whom) for w in early.waits] == [(0, 20, 1)]
    assert [(w.start_us, w.end_us, w.whom) for w in late.waits] == [(40, 50, 0)]


def test_workers_of_a_host_wait_for_those_of_their_host_only():
    steps = [[pulled(0, start, 500)] for start in (100, 150, 400, 400)]
    traces = traces_of(*steps, within_host=frozenset({"parallax/pull_0/all_to_all"}), hosts=[0, 0, 1, 1])
    assert [[(w.end_us - w.start_us, w.whom) for w in t.waits] for t in traces] == [[(50, 1)], [], [], []]


def test_who_gives_early_to_a_server_waits_for_who_gives_last():
    give = ("parallax/scatter/0/give", "AccumulatorApplyGradient")
    early, late = traces_of([step(0, on_server=[node(*give, 100, 110)])], [step(0, on_server=[node(*give, 400, 410)])])
    assert [(w.start_us, w.end_us, w.whom) for w in early.waits] == [(100, 400, 1)] and late.waits == ()
    assert early.steps[0].server_us == 10, "work on a server is in a column of its own"
    assert {span.row for span in early.spans} == {"server 1", "waiting"}


# --- rows ---


def test_overlapping_and_near_intervals_are_joined():
    assert union([(5, 5), (10, 20), (15, 30), (40, 50)]) == [(10, 30), (40, 50)]
    assert union([(10, 20), (25, 30), (40, 50)], gap=5) == [(10, 30), (40, 50)]


def test_ops_of_one_lane_do_not_overlap():
    ops = step(0, node("a", "A", 0, 10), node("b", "B", 5, 8), node("c", "C", 8, 20), node("d", "D", 10, 11)).ops
    assert [[op.name for op in lane] for lane in lanes(ops)] == [["a", "d"], ["b", "c"]]


# --- files ---


def test_a_trace_has_a_process_for_each_rank_and_a_row_for_each_kind():
    found = json.loads(trace_text(traces_of([pulled(7, 100, 340)], [pulled(7, 300, 340)])))
    events = found["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"} and all({"name", "pid", "tid"} <= e.keys() for e in events)
    named = [e for e in events if e["name"] == "process_name"]
    assert [e["args"]["name"] for e in named] == ["rank 0 on host h0", "rank 1 on host h0"]
    for rank in (0, 1):
        rows = [e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == rank]
        assert rows == ["step", *KINDS, "collectives"]
    (waited,) = [e for e in events if e.get("cat") == "waiting"]
    assert (waited["pid"], waited["ts"], waited["dur"], waited["name"]) == (0, 100, 200, "waiting for rank 1")


def test_a_summary_names_the_rank_that_the_others_waited_for():
    steps = [[pulled(n, n * 10_000 + start, n * 10_000 + 3400) for n in (4, 5)] for start in (1000, 3000, 1000)]
    traces = traces_of(*steps, hosts=[0, 1, 1])
    most = slowest(traces)
    assert (most.rank, most.waited_us) == (1, 2000)
    lines = summary(traces, (4, 5)).splitlines()
    assert lines[0] == "Trace of steps 4 to 5: ms in a step, the mean of 2"
    assert lines[1].split() == ["rank", "host", "step", "outside", *KINDS, "clock"]
    assert lines[2].split() == "0 h0 2.45 7.55 0.40 0.05 0.00 0.00 2.00 +0.00 +- 0.00".split()
    assert lines[-1] == "The slowest is rank 1 on host h1: the others waited 2.00 ms in a step for it."


def test_time_outside_the_steps_is_told_and_of_steps_that_follow_each_other_only():
    def traced(*numbers):
        return traces_of([pulled(n, n * 1000, n * 1000 + 350) for n in numbers])[0]

    assert outside(traced(4, 5, 6, 9)) == 600  # a step of 400 every 1000, and 7 and 8 were not traced
    assert outside(traced(4, 6)) is None and outside(traced(4)) is None
    words = "More time passes outside the steps than in them: 0.60 ms on rank 0."
    assert words in summary([traced(4, 5)], (4, 5)) and words not in summary([traced(4)], (4, 4))
    assert summary([traced(4)], (4, 4)).splitlines()[2].split()[3] == "-"


def two_legs(within_us, between_us, end_us):
    """A step with an exchange within the host and then one between all."""
    return step(
        0,
        node("parallax/pull_0/all_to_all", "ParallaxAllToAll", within_us, between_us - 10),
        node("parallax/pull_0/all_to_all_1", "ParallaxAllToAll", between_us, end_us),
    )


def test_who_comes_late_for_having_waited_itself_is_not_the_slowest():
    # Rank 3 is late within its host; so rank 2 is last by 1 where all meet, though it only waited.
    steps = [[two_legs(100, 120, 900)], [two_legs(100, 120, 900)], [two_legs(100, 711, 900)], [two_legs(700, 710, 900)]]
    traces = traces_of(*steps, within_host=frozenset({"parallax/pull_0/all_to_all"}), hosts=[0, 0, 1, 1])
    assert {w.whom for w in traces[0].waits} == {2}, "it waits for who comes last"
    most = slowest(traces)
    # Rank 2 waits 600; ranks 0 and 1 wait from 120 to 711, of which rank 2 waits until 700.
    assert (most.rank, most.waited_us) == (3, (600 + 580 + 580) / 3)


def test_who_works_while_it_waits_elsewhere_is_waited_for_itself():
    # Rank 1 waits for rank 2 in one exchange and computes meanwhile; rank 0 waits in another one for it.
    side, main = "parallax/all_reduce/all_reduce", "parallax/push_0/all_to_all"
    early, late = ("ParallaxAllReduce", 500, 950), ("ParallaxAllToAll", 100, 950)
    traces = traces_of(
        [step(0, node(side, *early), node(main, *late))],
        [
            step(
                0,
                node(side, "ParallaxAllReduce", 100, 950),
                node("matmul", "MatMul", 100, 900),
                node(main, "ParallaxAllToAll", 900, 950),
            )
        ],
        [step(0, node(side, *early), node(main, *late))],
    )
    assert slowest(traces).rank == 1


def test_two_ranks_that_wait_for_each_other_at_once_are_each_waited_for():
    one, other = "parallax/push_0/all_to_all", "parallax/push_1/all_to_all"
    first = step(0, node(one, "ParallaxAllToAll", 100, 500), node(other, "ParallaxAllToAll", 300, 500))
    second = step(0, node(other, "ParallaxAllToAll", 100, 500), node(one, "ParallaxAllToAll", 400, 500))
    most = slowest(traces_of([first], [second]))
    assert (most.rank, most.waited_us) == (1, 300)


def test_a_summary_says_how_far_the_clocks_of_servers_are_known():
    traces = [replace(t, servers=(Offset(0, 1500, 250), None)) for t in traces_of([pulled(0, 100, 340)])]
    text = summary(traces, (0, 0))
    assert "\nClock of server 0: +1.50 +- 0.25\nClock of server 1: unknown, its rows are not corrected\n" in text


def test_waiting_within_the_uncertainty_of_the_clocks_names_nobody():
    traces = traces_of([pulled(0, 100, 340)], [pulled(0, 130, 340)], offsets=[SAME_CLOCK, Offset(0, 0, 40)])
    assert "No rank is clearly the slowest: rank 1 on host h0 was waited for most, 0.03 ms" in summary(traces, (0, 0))


def test_a_summary_says_so_when_there_is_nothing_to_compare():
    assert "There is only one worker" in summary(traces_of([pulled(0, 100, 340)]), (0, 0))
    alone = [step(0, node("a", "MatMul", 0, 9))]
    assert "No rank waited for another" in summary(traces_of(alone, alone), (0, 0))
    assert summary(traces_of([], []), (10, 14)).startswith("No step was traced: there were fewer runs that train than")


def test_steps_of_no_ops_are_carried():
    assert json.loads(trace_text(traces_of([Step(0, ())])))["traceEvents"]


# --- wishes ---


def test_a_wish_is_a_folder_and_steps(tmp_path):
    assert trace_options(None, None) is None
    found = [trace_options(str(tmp_path), steps) for steps in (None, "3-5", "7")]
    assert [(w.folder, w.first, w.last) for w in found] == [(tmp_path, 10, 14), (tmp_path, 3, 5), (tmp_path, 7, 7)]


@pytest.mark.parametrize("steps", ["5-3", "x", "-1", "1-", "1-2-3", "1.5"])
def test_steps_that_are_none_are_refused(steps):
    with pytest.raises(ConfigError, match="--trace-steps must be A-B"):
        trace_options("d", steps)


def test_steps_without_a_folder_are_refused():
    with pytest.raises(ConfigError, match="--trace-steps 3-5 needs --trace DIR"):
        trace_options(None, "3-5")


def test_files_of_an_earlier_job_are_taken_away_and_others_stay(tmp_path):
    for name in ("rank-0.json", "rank-7.json", "trace.json", "summary.txt", "mine.txt"):
        (tmp_path / name).touch()
    make_ready(tmp_path, rank=1)
    assert len(list(tmp_path.iterdir())) == 5, "a worker takes away its own files"
    make_ready(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="--trace must name a writable folder"):
        make_ready(tmp_path / "file" / "traces")
