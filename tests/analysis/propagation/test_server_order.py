"""What servers hold may be written twice in a step where all workers have read before the second write."""

import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, make_feasible_plan
from parallax.analysis.reading.construction import record
from parallax.plans.plan import PlanConstraints, one_host
from tests.equality import gradient_models, models, program_models

record.install()
v1 = tf.compat.v1


def routes(build):
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=True):
        build(6)
    plan = make_feasible_plan(analyse(graph), one_host(2, 2), PlanConstraints("PS"))
    return {variable.name: variable.route for variable in plan.variables}


def test_what_is_written_again_after_one_workers_read_alone_stays_off_the_servers():
    assert routes(program_models.sharpness_aware) == {"one": "allreduce", "two": "allreduce"}


def decayed_before_the_update(rows):
    variable = v1.get_variable("w", [3, 2], initializer=v1.ones_initializer())
    read = variable.read_value()
    inputs = v1.placeholder(tf.float32, [rows, 3], "x")
    (gradient,) = tf.gradients(tf.reduce_mean(tf.square(inputs @ read)), [variable])
    with tf.control_dependencies([read]):
        decay = variable.assign_sub(0.1 * variable, read_value=False)
    with tf.control_dependencies([decay, gradient]):
        variable.assign_sub(0.1 * gradient, read_value=False)


def test_what_is_written_before_the_gradient_of_all_workers_is_there_stays_off_the_servers():
    assert routes(decayed_before_the_update) == {"w": "allreduce"}


def test_what_is_written_again_after_a_gradient_of_all_workers_is_on_servers():
    assert set(routes(models.chained).values()) == {"ps"}


def test_what_is_cut_on_the_servers_after_its_update_is_there():
    assert set(routes(program_models.adversaries_clipped).values()) == {"ps"}


def test_networks_that_take_turns_are_on_servers():
    found = routes(gradient_models.adversaries)
    assert {name: route for name, route in found.items() if "/w" in name} == dict.fromkeys(
        ["maker/w1", "maker/w2", "critic/w1", "critic/w2"], "ps"
    )
