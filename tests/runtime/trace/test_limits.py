"""Limits of traced steps: graphs of TensorFlow's own ops, times made by hand that can be added up by eye."""

from dataclasses import replace

import pytest
import tensorflow as tf

from parallax.graph.view import GraphView
from parallax.runtime.trace.clocks import SAME_CLOCK
from parallax.runtime.trace.dependencies import DEVICE, LINK, ResourceTime, dependencies_of
from parallax.runtime.trace.limits import step_limits
from parallax.runtime.trace.ops import Op, Step
from parallax.runtime.trace.rows import rank_trace
from parallax.runtime.trace.summary import summary
from parallax.runtime.trace.waits import Rendezvous, Wait
from parallax.transform.building.all_to_all import ALL_REDUCE, native_ops

v1 = tf.compat.v1


def all_reduced(tensor, name):
    return native_ops().parallax_all_reduce(parts=[tensor], kind="sum", scales=[1.0], elements=1, name=name)[0]


def two_layers():
    """`one` and `two`, forward and backward, whose gradients are all-reduced: that of `two` first."""
    with tf.Graph().as_default() as graph:
        one, two = (v1.get_variable(name, [], use_resource=True) for name in ("one", "two"))
        read = [tf.identity(v1.raw_ops.ReadVariableOp(resource=v.handle, dtype=tf.float32)) for v in (one, two)]
        x = tf.sin(read[0], name="forward_1")
        x = tf.add(x, read[1], name="forward_2")
        x = tf.cos(x, name="backward_2")
        second = all_reduced(x, "reduce_2")
        x = tf.exp(x, name="backward_1")
        first = all_reduced(x, "reduce_1")
        for variable, gradient, name in ((two, second, "update_2"), (one, first, "update_1")):
            tf.raw_ops.AssignSubVariableOp(resource=variable.handle, value=gradient, name=name)
        return GraphView(graph.as_graph_def(add_shapes=True))


def op(name, start_us, end_us, op_type="Sin", **more):
    kind = "all-reduce" if op_type == ALL_REDUCE else "compute"
    return Op(name, op_type, kind, start_us, end_us, **more)


def reduced(name, start_us, end_us):
    return op(name, start_us, end_us, ALL_REDUCE)


def one_after_the_other():
    """Forward 10 each, backward 20 each, 30 and 10 on the link, updates 5 each: nothing beside anything else."""
    return Step(
        3,
        (
            op("forward_1", 0, 10),
            op("forward_2", 10, 20),
            op("backward_2", 20, 40),
            reduced("reduce_2", 40, 70),
            op("backward_1", 70, 90),
            reduced("reduce_1", 90, 100),
            op("update_2", 100, 105),
            op("update_1", 105, 110),
        ),
    )


def limits(*steps, view=None, waited=(), within=frozenset()):
    return step_limits(view or two_layers(), steps, waited, within)


def test_exchanges_can_be_hidden_behind_what_does_not_need_them():
    found = limits(one_after_the_other())
    # Beside backward_1 20 of reduce_2; then reduce_1, and beside it update_2; update_1 follows.
    assert (found.measured_us, found.hidden_frac) == (110, 0)
    assert found.shortest_us == 10 + 10 + 20 + 30 + 10 + 5
    assert found.possible_frac == pytest.approx((20 + 5) / 40)


def test_where_steps_overlap_a_variable_is_read_when_its_update_is_over():
    found = limits(one_after_the_other())
    # From forward_2 on: layers until 30, and the link from there to 70, even if reduce_1 is let in between at 50. Then
    # update_1 and the next forward_1 take the device from 60 to 75, and update_2, which is ready at 70, until 80.
    assert found.overlapping_us == 80
    assert found.overlapping_frac >= found.possible_frac


def test_what_was_hidden_is_possible():
    ops = [replace(one) for one in one_after_the_other().ops]
    beside = replace(ops[4], start_us=40, end_us=60)
    first = replace(ops[5], start_us=70, end_us=80)
    late = [replace(one, start_us=one.start_us - 20, end_us=one.end_us - 20) for one in ops[6:]]
    found = limits(Step(3, (*ops[:4], beside, first, *late)))
    assert (found.measured_us, found.hidden_frac) == (90, pytest.approx(20 / 40))
    assert found.shortest_us == 85 and found.possible_frac == pytest.approx(25 / 40)


def test_waiting_for_others_is_left_out():
    waits = [Wait(Rendezvous(3, "reduce_2", 0, -1), 40, 68, 1)]
    found = limits(one_after_the_other(), waited=waits)
    assert found.shortest_us == 10 + 10 + 20 + 20 + 10 + 5, "2 of reduce_2 are left, beside backward_1"
    assert found.measured_us == 110


def test_two_exchanges_at_one_time_take_no_more_than_the_link_was_busy():
    ops = list(one_after_the_other().ops)
    ops[3:6] = [op("backward_1", 40, 60), reduced("reduce_2", 40, 100), reduced("reduce_1", 60, 100)]
    found = limits(Step(3, tuple(ops)))
    # The link is busy from 40 to 100: 40 for reduce_2 and 20 for reduce_1; backward_1 and update_2 are beside it.
    assert found.shortest_us == 40 + 60 + 5 and found.measured_us == 110


def test_exchanges_within_a_host_do_not_take_the_link():
    ops = list(one_after_the_other().ops)
    ops[4], ops[5] = op("backward_1", 40, 60), reduced("reduce_1", 60, 100)
    both = limits(Step(3, tuple(ops)))
    apart = limits(Step(3, tuple(ops)), within=frozenset({"reduce_1"}))
    # reduce_1 shares 10 of its 40 with reduce_2 on one link, and none on its own.
    assert both.shortest_us == 40 + 60 + 5
    assert apart.shortest_us == 60 + 40 + 5


def test_an_op_that_began_before_another_had_ended_did_not_need_it():
    ops = list(one_after_the_other().ops)
    ops[6] = op("update_2", 50, 55)  # before reduce_2 has ended, as if another value had been fed
    # Without update_2 after reduce_2, nothing waits for the link's 40 from 40 on, if reduce_1 is let in between.
    assert limits(Step(3, tuple(ops))).shortest_us == 80


def test_what_a_function_does_is_of_its_call_and_added_ops_need_nothing():
    with tf.Graph().as_default() as graph:
        x = tf.sin(1.0, name="before")
        x = tf.cond(x > 0, lambda: tf.cos(x), lambda: x, name="branch")
        all_reduced(x, "reduced")
    view = GraphView(graph.as_graph_def(add_shapes=True))
    called = next(node.name for node in view.graph_def.node if node.op in ("If", "StatelessIf"))
    step = Step(
        0,
        (
            op("before", 0, 10),
            op(f"{called}/then/_0/Cos", 10, 30),
            op("added_by_tensorflow", 30, 40),
            reduced("reduced", 40, 45),
        ),
    )
    found = limits(step, view=view)
    assert found.shortest_us == 10 + 20 + 10, "10 of the device beside the link, which needs 30 before it"
    assert found.overlapping_us == 40


def test_a_loop_is_one_activity():
    with tf.Graph().as_default() as graph:
        v1.disable_control_flow_v2()
        try:
            x = tf.sin(1.0, name="before")
            end = tf.while_loop(lambda i: i < 3.0, lambda i: tf.add(i, x, name="add"), [0.0], name="loop")
        finally:
            v1.enable_control_flow_v2()
        all_reduced(end, "reduced")
    view = GraphView(graph.as_graph_def(add_shapes=True))
    runs = [op("loop/add", start, start + 4) for start in (10, 15, 20)]
    step = Step(0, (op("before", 0, 10), *runs, op("loop/LoopCond", 16, 18), reduced("reduced", 24, 30)))
    found = limits(step, view=view)
    assert found.shortest_us == 10 + 12 + 6


def test_the_last_five_steps_are_looked_at():
    longer = replace(one_after_the_other().ops[-1], end_us=510)
    first = Step(2, (*one_after_the_other().ops[:-1], longer))
    assert limits(first, *[one_after_the_other()] * 4).measured_us == (510 + 4 * 110) / 5
    assert limits(first, *[one_after_the_other()] * 5).measured_us == 110


def test_without_exchanges_or_with_servers_there_are_no_limits():
    assert limits(Step(3, (op("forward_1", 0, 10),))) is None
    assert limits(Step(3, (op("forward_1", 0, 10, server=0), reduced("reduce_1", 10, 20)))) is None


def test_reference_variables_let_no_steps_overlap():
    with tf.Graph().as_default() as graph:
        old = v1.get_variable("old", [], use_resource=False)
        all_reduced(tf.sin(old, name="sin"), "reduced")
    view = GraphView(graph.as_graph_def(add_shapes=True))
    found = limits(Step(0, (op("old", 0, 1), op("sin", 1, 10), reduced("reduced", 10, 20))), view=view)
    assert found.shortest_us == 20 and found.overlapping_us is None and found.overlapping_frac is None


def test_nodes_whose_time_is_not_known_are_looked_through():
    found = dependencies_of(two_layers(), ["forward_1", "backward_1", "update_1"])
    step = found.step(
        {"forward_1": ResourceTime(1, DEVICE), "backward_1": ResourceTime(2, LINK), "update_1": ResourceTime(3, DEVICE)}
    )
    assert step.names.index("forward_1") < step.names.index("forward_2") < step.names.index("reduce_1")
    assert "reduce_2" not in step.names and "one" not in step.names


def test_the_summary_tells_the_rank_whose_shortest_step_is_longest():
    short, long = (
        replace(rank_trace(rank, "h", SAME_CLOCK, [step], ()), limits=limits(step))
        for rank, step in enumerate([Step(3, one_after_the_other().ops[:6]), one_after_the_other()])
    )
    assert summary([short, long], (3, 3)).splitlines()[-2] == (
        "Communication hidden on rank 1: 0 % of 62 % possible (62 % where steps overlap); shortest schedule of its ops "
        "0.09 ms (0.08 where steps overlap); measured 0.11 ms."
    )
    no_overlap = replace(long, limits=replace(long.limits, overlapping_us=None, overlapping_frac=None))
    assert "0 % of 62 % possible; shortest schedule of its ops 0.09 ms; measured" in summary([no_overlap], (3, 3))
