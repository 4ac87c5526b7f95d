"""What stands for tensors of the user's graph while ops are built is gone from the finished graph."""

import tensorflow as tf

from parallax.graph.view import Edge, GraphView
from parallax.plans.rewrites import TrainingMode
from parallax.transform.building.editor import SCOPE, Worker, open_editor

v1 = tf.compat.v1


def test_a_reference_variable_is_read_and_then_written_by_new_ops() -> None:
    with tf.Graph().as_default() as graph:
        table = v1.get_variable("table", [4, 2], initializer=v1.zeros_initializer(), use_resource=False)
        tf.identity(table, name="seen")
    editor = open_editor(GraphView(graph.as_graph_def(add_shapes=True)), Worker(0, 1, 0), TrainingMode())
    with editor.scratch.as_default(), tf.name_scope(f"{SCOPE}/"):
        read = editor.tensor("table:0")[1:]
        write = tf.raw_ops.Assign(ref=editor.reference("table"), value=tf.ones([4, 2]), name="write")
        editor.redirect([Edge("seen", 0)], tf.raw_ops.ConcatV2(values=[read, editor.tensor("table:0")], axis=0))
    with tf.Graph().as_default() as changed, v1.Session(graph=changed) as session:
        tf.graph_util.import_graph_def(editor.finish(), name="")
        session.run(write.op.name)
        assert session.run("seen:0").tolist() == [[1.0, 1.0]] * 7


def test_workers_of_islands_are_counted_over_all_for_data_and_random_numbers() -> None:
    workers = [Worker(replica, 2, 7, island=island, islands=3) for island in range(3) for replica in range(2)]
    assert [(one.among_all.rank, one.among_all.size) for one in workers] == [(rank, 6) for rank in range(6)]
    assert Worker(1, 4, 7).among_all == Worker(1, 4, 7)
