"""Where a captured graph is cut: what goes with what, by which op; what a plan keeps of it; what is refused."""

from dataclasses import replace

import pytest
import tensorflow.compat.v1 as tf

from parallax.analysis.cut.plan_stages import get_graph_cut, layout_of_replicas
from parallax.analysis.graph_to_plan import analyse, plan_for, rewrites_of
from parallax.base.errors import PlanError
from parallax.plans.plan import Layout, one_host, plan_from_json
from parallax.report.plan_table import plan_table
from parallax.settings.config import Config
from parallax.settings.parts import CheckPointConfig, ReplanConfig
from parallax.transform.building.editor import Worker
from parallax.transform.passes.cut_stages import RECEIVE, SEND
from parallax.transform.pipeline import transform

LAYERS = 4


def layers(values, number):
    for layer in range(number):
        kernel = tf.get_variable(f"kernel{layer}", [16, 16], use_resource=True)
        values = tf.add(values, tf.nn.relu(values @ kernel), name=f"layer{layer}")
    return values


def build(with_tape=False):
    graph = tf.Graph()
    with graph.as_default():
        values = tf.placeholder(tf.float32, [None, 16], name="values")
        with tf.GradientTape(persistent=True) as tape:
            loss = tf.reduce_mean(tf.square(layers(values, LAYERS)), name="loss")
        trained = tf.trainable_variables()
        optimizer = tf.train.AdamOptimizer(0.01)
        gradients = tape.gradient(loss, trained) if with_tape else tf.gradients(loss, trained)
        clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
        optimizer.apply_gradients(
            zip(clipped, trained, strict=True), tf.train.get_or_create_global_step(), name="train"
        )
    return graph


@pytest.fixture(scope="module", params=[False, True], ids=["gradients", "tape"])
def analysed(request):
    return analyse(build(request.param))


def planned(analysed, workers, **settings):
    return plan_for(analysed, one_host(workers), Config(**settings))


def test_autodiff_goes_with_its_forward_op(analysed):
    found = get_graph_cut(analysed.captured, analysed.sources)
    cut = found.cut_at([["layer1"]])
    (record,) = analysed.captured.records
    assert len(record.forward) > 0.8 * len(record.ops)
    view = analysed.captured.view
    for node in record.ops & cut.places.keys():
        if view.op(node) == "MatMul":
            assert cut.places[node] == cut.places[record.forward[node]]
    assert [cut.places[f"kernel{layer}"] for layer in range(LAYERS)] == [0, 0, 1, 1]
    messages = [one for one in found.list_messages(cut) if one.tensor]
    assert [one.tensor for one in messages if one.target == 1] == ["layer1:0"]
    assert len([one for one in messages if one.target == 0]) == 1


def test_a_stage_has_its_own_nodes_and_those_that_are_everywhere(analysed):
    rewrites = rewrites_of(analysed, planned(analysed, 2, stages=2))
    graphs = [transform(analysed.captured.view, rewrites, Worker(0, 1, 1, stage=stage)) for stage in (0, 1)]
    names = [{node.name for node in one.graph_def.node} for one in graphs]
    assert names[0] | names[1] >= analysed.captured.view.nodes.keys()
    both = names[0] & names[1]
    assert {"global_step", "beta1_power", "values", "train"} <= both and "kernel0" not in both
    assert graphs[0].elsewhere >= {"kernel2", "kernel3", "kernel2/Adam"}
    sent = [{node.attr["number"].i for node in one.graph_def.node if node.op == SEND} for one in graphs]
    received = [{node.attr["number"].i for node in one.graph_def.node if node.op == RECEIVE} for one in graphs]
    assert sent[0] == received[1] and sent[1] == received[0] and sent[0] | sent[1] == set(range(len(sent[0] | sent[1])))


def test_a_plan_keeps_its_stages(analysed):
    plan = planned(analysed, 6, stages=["layer0", "layer2:0"], micro_batches=2)
    assert [stage.variables for stage in plan.stages] == [("kernel0",), ("kernel1", "kernel2"), ("kernel3",)]
    assert [stage.begins for stage in plan.stages] == [(), ("layer0:0",), ("layer2:0",)]
    assert [stage.parameters for stage in plan.stages] == [256, 512, 256]
    assert (plan.num_workers, plan.num_replicas, plan.accumulate_steps) == (6, 2, 2)
    assert plan_from_json(plan.to_json()) == plan
    table = plan_table(plan)
    assert "2 replicas of 3 stages" in table and "idle 50 % of the time" in table


def test_one_stage_is_none(analysed):
    assert planned(analysed, 2, stages=1, micro_batches=1) == planned(analysed, 2)
    assert '"stages"' not in planned(analysed, 2, stages=1).to_json()
    with pytest.raises(PlanError, match="replicas"):
        plan_from_json(planned(analysed, 2, stages=2).to_json().replace('"hosts": [\n  2\n ]', '"hosts": [\n  3\n ]'))


@pytest.mark.parametrize(
    ("workers", "settings", "said"),
    [
        (3, {"stages": 2}, "3 workers were given, and 2 stages"),
        (64, {"stages": 64}, "Request fewer"),
        (2, {"stages": ["kernel0"]}, "'kernel0' is none"),
        (2, {"stages": ["train"]}, "'train' is none"),
        (3, {"stages": ["layer2", "layer0"]}, "'layer0' does not depend on 'layer2'"),
        (2, {"stages": ["loss"]}, "'loss' is its end"),
        (2, {"stages": 2, "run_option": "PS"}, "not supported yet with servers"),
        (2, {"stages": 2, "replan": ReplanConfig("on")}, "not supported yet with plans that change"),
        (2, {"stages": 2, "ckpt_config": CheckPointConfig("x", 5, whole_every=3)}, "not supported yet with increments"),
    ],
)
def test_refuses(analysed, workers, settings, said):
    with pytest.raises(PlanError, match=said):
        planned(analysed, workers, **settings)


def test_refuses_asynchronous_training(analysed):
    with pytest.raises(PlanError, match="asynchronous training"):
        plan_for(analysed, one_host(2), Config(stages=2), synchronous=False)


def test_refuses_a_graph_whose_loss_is_unknown(analysed):
    captured = replace(analysed.captured, records=())
    with pytest.raises(PlanError, match="which op the loss is was not recorded"):
        planned(replace(analysed, captured=captured), 2, stages=2)


def test_consecutive_workers_are_a_replica():
    assert layout_of_replicas(Layout((4, 4)), 4) == Layout((1, 1))
    assert layout_of_replicas(Layout((3, 3)), 2) == Layout((2, 1))
    assert layout_of_replicas(Layout((2, 2, 2), (0,)), 1) == Layout((2, 2, 2), (0,))


@pytest.mark.parametrize("is_resource", [True, False])
@pytest.mark.parametrize("ends", [None, ["layer1"]], ids=["best", "named"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_penalties_and_statistics_are_at_their_layers(is_before, ends, is_resource):
    """No weights cross a cut, and no activations but those between layers."""
    graph = tf.Graph()
    with graph.as_default(), tf.variable_scope("", use_resource=is_resource):
        values = tf.placeholder(tf.float32, [None, 64], name="values")
        kernels = [tf.get_variable(f"kernel{layer}", [64, 64]) for layer in range(4)]

        def penalties():
            return [tf.nn.l2_loss(kernels[0]), *(tf.reduce_sum(tf.square(one)) for one in kernels[1:])]

        found, averages = penalties() if is_before else [], []
        for layer, kernel in enumerate(kernels):
            values = tf.nn.relu(values @ kernel, name=f"layer{layer}")
            average = tf.get_variable(f"average{layer}", [64], trainable=False)
            averages.append((average, tf.nn.l2_loss(average - tf.stop_gradient(tf.reduce_mean(values, 0)))))
        loss = tf.reduce_mean(tf.square(values)) + 0.1 * tf.add_n(found or penalties())
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        distance = tf.add_n([one for _, one in averages])
        tf.train.GradientDescentOptimizer(0.1).minimize(distance, var_list=[one for one, _ in averages])
    analysed = analyse(graph)
    plan = planned(analysed, 2, stages=ends or 2)
    cut = get_graph_cut(analysed.captured, analysed.sources)
    messages = cut.list_messages(cut.cut_at([stage.ends for stage in plan.stages[:-1]]))
    shapes = {one.tensor: analysed.captured.view.shape(one.tensor) for one in messages if one.tensor}
    assert not any(shape == (64, 64) for shape in shapes.values()), shapes
    if ends is None:
        assert sorted(shapes.values(), key=len)[-2:] == [(None, 64)] * 2, shapes
        assert all(shape == () for shape in sorted(shapes.values(), key=len)[:-2]), shapes
