"""Asynchronous workers: each step is one process's on that worker's own batch, whatever its examples have to do."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from ops.exactness.runs import JobInMemory
from ops.exactness.session import NamedSession
from ops.exactness.transport import combine_workers
from parallax import Config
from parallax.analysis.graph_to_plan import analyse_for, plan_for, rewrites_of
from parallax.analysis.reading.capture import initialization_phases
from parallax.plans.plan import one_host
from parallax.transform.building.all_to_all import native_ops
from parallax.transform.building.editor import Worker
from parallax.transform.pipeline import transform
from tests.equality import gradient_models, models, training
from tests.exactness.uneven_script import BATCHES, apply, contrastive, fed, model, normalized, plain

v1 = tf.compat.v1
STEPS = [part for update in BATCHES for parts in update for part in parts if len(part[0])]
EXAMPLES = 4


def of_open_length(loss, optimizer, clip):
    def build():
        variables, [gradients] = model(loss, [fed()])
        apply(optimizer, clip, gradients, variables)

    return build, STEPS


def numbered():
    """A batch whose examples are numbered by constants."""
    ids, y = v1.placeholder(tf.int64, [EXAMPLES], "ids"), v1.placeholder(tf.float64, [EXAMPLES], "y")

    def loss(h, y):
        logits = h @ tf.transpose(h) + y[:, None]
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.range(EXAMPLES), logits=logits)
        return tf.reduce_mean(each) / EXAMPLES

    variables, [gradients] = model(loss, [(ids, y)])
    apply("Adagrad", True, gradients, variables)


def watched():
    """A step that counts, keeps a moving average of its batch, and has Adam's slots of the table."""
    ids, y = fed()
    moving = v1.get_variable("moving", [3], tf.float64, initializer=v1.zeros_initializer(), trainable=False)

    def loss(h, y):
        mean = tf.reduce_mean(h, 0)
        with tf.control_dependencies([v1.assign(moving, 0.9 * moving + 0.1 * mean)]):
            return plain(h - mean, y)

    variables, [gradients] = model(loss, [(ids, y)])
    rate = v1.placeholder_with_default(np.float32(0.1), [], "rate")
    step = v1.train.get_or_create_global_step()
    v1.train.AdamOptimizer(rate).apply_gradients(zip(gradients, variables, strict=True), step, name="train")


def slowed():
    """A rate by the first example of the batch, and a step only where its loss is not small."""
    ids, y = fed()
    variables, [gradients] = model(plain, [(ids, y)])
    rate = 0.1 / (1.0 + tf.square(y[0]))
    steps = [tf.convert_to_tensor(g) * tf.where(y[-1] > 0, rate, 2.0 * rate) for g in gradients]
    tf.group(*(v1.assign_sub(v, step) for v, step in zip(variables, steps, strict=True)), name="train")


def of_four():
    random = np.random.RandomState(1)
    return [(random.randint(0, 11, EXAMPLES), random.randn(EXAMPLES)) for _ in range(5)]


CASES = {
    "plain": of_open_length(plain, "Adagrad", True),
    "normalized": of_open_length(normalized, "Momentum", False),
    "contrastive": of_open_length(contrastive, "Adagrad", True),
    "numbered": (numbered, of_four()),
    "watched": (watched, STEPS),
    "slowed": (slowed, STEPS),
}


MODELS = ("bags and rows", "unique, buckets", "positions, mixed", "loss scaling", "divide by max", "adapted once")
"""Of what another worker would share rows, numbers and gradients in synchronous training."""


def reads_of(graph):
    return {v.name: graph.as_graph_element(v).name for v in graph.get_collection("variables")}


def one_process(build, steps):
    with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=True):
        build()
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            for ids, y in steps:
                session.run("train", {"ids:0": ids, "y:0": y})
            return {name: session.run(read) for name, read in reads_of(graph).items()}


def by_one_of_two(graph, op, rank, feeds):
    """The variables after one worker's steps; the other takes none."""
    native_ops()
    has_table = "emb" in [op.name for op in graph.get_operations()]
    config = Config(run_option="PS", partitions={"emb": 3} if has_table else {})
    analysed = analyse_for(graph, config, synchronous=False)
    plan = plan_for(analysed, one_host(2, 2), config, synchronous=False)
    rewrites = rewrites_of(analysed, plan)
    of = [Worker(one, 2, training.SEED, servers=plan.servers) for one in range(2)]
    made = [transform(analysed.captured.view, rewrites, worker) for worker in of]
    with NamedSession(combine_workers([one.graph_def for one in made], [op]), v1.ConfigProto()) as session:
        job = JobInMemory(session, analysed, made)
        for phase in initialization_phases(analysed.captured):
            job.run_ops([phase] * 2)
        job.run_ops([list(one.counter_initializers) for one in made])
        for given in feeds:
            job.run_alone(rank, [op], given)
        reads = reads_of(graph)
        return dict(zip(reads, job.run_alone(rank, list(reads.values()), {}), strict=True))


@pytest.mark.rotates
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", CASES)
def test_a_workers_steps_are_one_process_on_its_batches(case, rank):
    build, steps = CASES[case]
    with tf.Graph().as_default() as graph, v1.variable_scope("", use_resource=True):
        build()
    found = by_one_of_two(graph, "train", rank, [{"ids:0": ids, "y:0": y} for ids, y in steps])
    for name, value in one_process(build, steps).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_rows_are_those_of_the_workers_own_batch(model):
    build = models.MODELS.get(model) or gradient_models.MODELS[model]
    steps = [draw[0] for draw in training.all_batches(1)[: training.STEPS]]
    case = SimpleNamespace(build=build, resource=True, kept=1, name=model)
    expected = training.one_process(case, [[[batch]] for batch in steps], 1)
    graph, (op,) = training.build(build, training.ROWS_PER_WORKER, True)
    found = by_one_of_two(graph, op.name, 1, [training.feeds(graph, batch) for batch in steps])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)
