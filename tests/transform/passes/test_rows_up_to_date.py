"""Readers and writers of a lazily updated table find rows that lack nothing, however they come to its handle."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.analysis.reading.capture import capture
from parallax.base.errors import SessionError, TransformError
from parallax.graph.row_updates import BRING_UP_TO_DATE, GATHER_ROWS, UPDATE_ROWS, states_of
from parallax.graph.view import GraphView, node_of
from parallax.runtime.worker.reports.id_errors import id_error
from parallax.runtime.worker.script import what_text
from parallax.runtime.worker.session.fetches import check_computed
from parallax.transform.passes.rows_up_to_date import keep_up_to_date

v1 = tf.compat.v1
ROWS, WIDTH = 12, 2
BATCHES = [[0, 1, 1], [2, 0, 3], [3, 3, 3], [4, 2, 1], [0, 0, 5]]  # rows from 6 on are never asked for


class Model:
    """A table trained by momentum, as a script may write it, with all that a test fetches."""

    def __init__(self):
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.ids = v1.placeholder(tf.int64, [3], name="ids")
            start = np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) / 10
            self.table = v1.get_variable("table", initializer=start, use_resource=True)
            self.speed = v1.get_variable("speed", initializer=np.ones_like(start), use_resource=True, trainable=False)
            self.loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(self.table, self.ids)))
            (slices,) = tf.gradients(self.loss, [self.table])
            gradient = tf.math.unsorted_segment_sum(slices.values, slices.indices, ROWS)
            with tf.control_dependencies([self.speed.assign(0.9 * self.speed + gradient, read_value=False)]):
                step = self.table.assign_sub(0.01 * self.speed.read_value(), read_value=False)
            self.train = tf.group(step, name="train").name
            self.value = v1.placeholder(tf.float32, [ROWS, WIDTH], name="value")
            self.assign = self.table.assign(self.value, read_value=False).name
            self.start = v1.global_variables_initializer().name

    def by_row(self):
        """The graph with updates by row, and where reads went."""
        view = capture(self.graph, by_row=True).view
        made = type(view.graph_def)()
        made.CopyFrom(view.graph_def)
        (update,) = (node for node in made.node if node.op == UPDATE_ROWS)
        return made, keep_up_to_date(made, [tuple(node_of(f"{handle}:0") for handle in states_of(update))])

    def both(self, run):
        """What `run` gives of the graph as it is, and of that with updates by row."""
        found = []
        for graph_def, read in ((self.graph.as_graph_def(), {}), self.by_row()):
            graph = tf.Graph()
            with graph.as_default():
                tf.graph_util.import_graph_def(graph_def, name="")
            with v1.Session(graph=graph) as session:
                session.run(self.start)
                found.append(run(session, lambda name, read=read: read.get(name, name)))
        return found

    def trained(self, session, steps=BATCHES):
        for ids in steps:
            session.run(self.train, {self.ids.name: ids})


def read_of(variable):
    return f"{variable.op.name}/Read/ReadVariableOp:0"


def assert_equal(found):
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_whole_reads_of_table_and_slot_are_up_to_date_in_every_step():
    model = Model()

    def run(session, name):
        read = [name(read_of(model.table)), name(read_of(model.speed))]
        values = []
        for ids in BATCHES:
            model.trained(session, [ids])
            values += session.run(read)
        return values

    found = model.both(run)
    assert_equal(found)
    assert np.any(found[0][0][7] != found[0][-2][7])  # a row without a gradient moves


def test_rows_that_are_looked_up_are_up_to_date():
    model = Model()
    with model.graph.as_default():
        later = tf.nn.embedding_lookup(model.table, tf.constant([7, 0, 7, 11])).name

    def run(session, name):
        model.trained(session)
        return [session.run(later), *session.run([name(read_of(model.speed))])]

    assert_equal(model.both(run))


def test_who_assigns_a_table_leaves_its_slot_with_all_updates():
    model = Model()

    def run(session, name):
        model.trained(session)
        session.run(model.assign, {model.value.name: np.full((ROWS, WIDTH), 3, np.float32)})
        read = [name(read_of(model.table)), name(read_of(model.speed))]
        once = session.run(read)
        model.trained(session)
        return [*once, *session.run(read)]

    assert_equal(model.both(run))


def test_what_is_initialized_anew_lacks_nothing():
    model = Model()

    def run(session, name):
        model.trained(session)
        session.run(model.start)
        model.trained(session, BATCHES[:2])
        return session.run([name(read_of(model.table)), name(read_of(model.speed))])

    assert_equal(model.both(run))


def test_lookups_in_branches_and_loops_are_up_to_date():
    model = Model()
    v1.disable_control_flow_v2()
    try:
        with model.graph.as_default():
            asked = tf.constant([8, 1])
            branch = v1.cond(
                v1.placeholder_with_default(True, []),
                lambda: tf.nn.embedding_lookup(model.table, asked),
                lambda: tf.zeros([2, WIDTH]),
            ).name
            loop = v1.while_loop(
                lambda i, _: i < 3,
                lambda i, total: (i + 1, total + tf.nn.embedding_lookup(model.table, asked + i)),
                [0, tf.zeros([2, WIDTH])],
            )[1].name
    finally:
        v1.enable_control_flow_v2()

    def run(session, name):
        model.trained(session)
        return [session.run(loop), session.run(branch), *session.run([name(read_of(model.speed))])]

    assert_equal(model.both(run))
    made, _ = model.by_row()
    assert sum(node.op == GATHER_ROWS for node in made.node) == 3


def test_an_id_that_is_no_row_is_named_with_its_table():
    model = Model()
    made, _ = model.by_row()
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(made, name="")
    with v1.Session(graph=graph) as session:
        session.run(model.start)
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            session.run(model.loss.name, {model.ids.name: [0, ROWS, 1]})
    found = id_error(raised.value, GraphView(made), 1, 4)
    rule = f"An id must be a row of its table: table has rows 0 to {ROWS - 1}, got {ROWS}. "
    remedy = "Check what feeds the lookup."
    assert str(found) == f"{rule}Rank 1 looked that up in step 4, and the table has {ROWS} rows. {remedy}"
    assert what_text(found) == f"{rule}{remedy}"


def test_a_part_of_an_update_that_is_not_computed_any_more_is_refused_by_name():
    lazy = capture(Model().graph, by_row=True).lazy
    check_computed("table/Read/ReadVariableOp:0", lazy)
    with pytest.raises(SessionError, match=r"'.*' can be neither .*: it is part of an update of all rows of 'table'"):
        check_computed(f"{lazy[0].removed[0]}:0", lazy)


def test_a_write_waits_until_all_rows_are_up_to_date():
    model = Model()
    made, _ = model.by_row()
    nodes = {node.name: node for node in made.node}
    (waited,) = (name[1:] for name in nodes[model.assign].input if name.startswith("^"))
    assert nodes[waited].op == BRING_UP_TO_DATE


def test_a_reader_that_no_rule_is_for_is_refused():
    model = Model()
    made, _ = model.by_row()
    odd = made.node.add(name="odd", op="ResourceGatherNd", input=["table", "ids"])
    odd.attr["dtype"].type = tf.float32.as_datatype_enum
    with pytest.raises(TransformError, match=r"ResourceGatherNd 'odd' uses 'table' in another way"):
        keep_up_to_date(made, [("table", "speed")])


def test_a_table_with_such_a_reader_is_updated_whole():
    model = Model()
    with model.graph.as_default():
        tf.raw_ops.ResourceGatherNd(resource=model.table.handle, indices=[[1]], dtype=tf.float32, name="odd")
    (found,) = capture(model.graph, by_row=True).lazy
    assert not found.node
    assert found.reason == "op ResourceGatherNd 'odd' uses the variable 'table' in a way that is not supported"
