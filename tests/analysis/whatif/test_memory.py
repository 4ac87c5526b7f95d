"""The memory of processes: slots by their own shape, shares of tables, tensors of a step, and the largest batch."""

import pytest
import tensorflow as tf

from parallax.analysis.graph_to_plan import analyse, memory_of, plan_for
from parallax.analysis.measuring.live_bytes import live_bytes
from parallax.analysis.propagation.propagate import walk_graph
from parallax.analysis.whatif.memory import FixedMemory, HostMemory
from parallax.optimizers import RowWiseAdagradOptimizer
from parallax.plans.memory import RESOURCE_FILE
from parallax.plans.plan import Layout
from parallax.report.memory import memory_table
from parallax.settings.config import Config

v1 = tf.compat.v1
ROWS, WIDTH, BATCH = 1000, 8, 16
MB = 10**6
FIXED = FixedMemory(10 * MB)


def graph_of(batch=BATCH, optimizer=None, lazy_updates=True):
    """A table, its optimizer, and one dense layer."""
    graph = tf.Graph()
    with graph.as_default():
        ids = v1.placeholder(tf.int64, [batch], name="ids")
        table = v1.get_variable("table", [ROWS, WIDTH], use_resource=True)
        w = v1.get_variable("w", [WIDTH, 1], use_resource=True)
        loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids) @ w))
        (optimizer or RowWiseAdagradOptimizer(0.1)).minimize(loss)
    return analyse(graph, lazy_updates)


@pytest.fixture(scope="module")
def analysed():
    return graph_of()


def memory(analysed, has=100 * MB, workers=(1, 1), examples=0, fixed=FIXED):
    config = Config(touched_rows={"table": 16}) if examples else Config()
    plan = plan_for(analysed, Layout(workers, ()), config)
    hosts = [HostMemory(f"host{n}", has, RESOURCE_FILE) for n in range(len(workers))]
    return memory_of(analysed, plan, config, hosts, fixed, examples=examples)


def test_a_slot_is_as_large_as_its_own_shape_and_type(analysed):
    table = analysed.spec.variable("table")
    assert [(slot.width, slot.dtype_bytes) for slot in table.slots] == [(1, 4)]
    assert (table.value_bytes, table.slots_bytes) == (ROWS * WIDTH * 4, ROWS * 4)
    adam = graph_of(optimizer=v1.train.AdamOptimizer(0.1)).spec.variable("table")
    assert adam.slots_bytes == 2 * adam.value_bytes


def test_owners_hold_their_rows_with_their_slots(analysed):
    first, second = memory(analysed).processes
    dense = WIDTH * 4
    # The slot of w, [8] beside [8, 1], counts as a variable that all hold.
    assert first.values_bytes == second.values_bytes == ROWS * WIDTH * 4 // 2 + 2 * dense
    assert first.slots_bytes == ROWS * 4 // 2
    assert first.total_bytes == sum(
        (first.values_bytes, first.slots_bytes, first.buffer_bytes, first.activation_bytes, 10 * MB)
    )


def test_adam_makes_copies_of_a_whole_share_and_rules_by_row_none():
    adam = v1.train.AdamOptimizer(0.1)
    cases = (graph_of(), graph_of(optimizer=adam), graph_of(optimizer=adam, lazy_updates=False))
    by_rule, lazy, whole = (memory(case).processes[0].activation_bytes for case in cases)
    share = ROWS * WIDTH * 4 // 2
    assert max(by_rule, lazy) < 2 * share < 3 * share < whole


def test_the_largest_batch_fits_and_one_more_does_not(analysed):
    found = memory(analysed)
    assert found.examples == BATCH and found.largest_batch is not None
    most = found.largest_batch
    for batch, fits in ((most, True), (most + most // 50 + 1, False)):
        use = memory(graph_of(batch))
        # At most as many rows are touched as there are: what grows in a straight line is an upper bound.
        assert use.hosts[0].fits is fits or batch > ROWS


def test_no_batch_fits_where_variables_do_not(analysed):
    found = memory(analysed, has=10 * MB)
    assert found.largest_batch == 0 and not found.hosts[0].fits
    assert "No batch fits" in memory_table(found) and "lacks" in memory_table(found)


def test_an_open_batch_is_as_large_as_one_says():
    one, two = (memory(graph_of(None), examples=n) for n in (1000, 2000))
    assert (one.examples, two.examples) == (1000, 2000)
    assert two.processes[0].activation_bytes > 1.9 * one.processes[0].activation_bytes
    assert "leaves the batch length open" in memory_table(memory(graph_of(None)))


def test_tensors_live_from_the_op_that_makes_them_to_the_last_that_takes_them(analysed):
    walk = walk_graph(analysed.captured, analysed.sources, {"table": "alltoall"})
    live = live_bytes(walk, {"w": 64.0}, {"table": 16.0}, 1)
    looked_up = BATCH * WIDTH * 4
    assert looked_up <= live.of_batch.max() <= 6 * looked_up
    assert live.gradients.max() == 64.0 and live.gradients[-1] == 0.0
    assert live.largest[1] == looked_up


def test_the_table_names_processes_hosts_and_what_dominates(analysed):
    text = memory_table(memory(analysed))
    assert "worker 0" in text and "of 100 MB, as the resource file says: fits." in text
    assert text.index("interpreter and frameworks") < text.index("table with 1 slot")


def test_rows_on_their_way_to_a_checkpoint_and_the_launcher_are_counted_by_name(analysed):
    table, chunk, launcher = ROWS * WIDTH * 4, 1000, 7 * MB
    found = memory(analysed, fixed=FixedMemory(10 * MB, chunk, launcher, launcher_host=1))
    plain = memory(analysed)
    assert chunk < table
    assert [use.moved_bytes for use in found.processes] == [6 * chunk, 6 * chunk, 0]
    assert (found.processes[2].kind, found.processes[2].total_bytes) == ("launcher", launcher)
    more = [one.needs_bytes - before.needs_bytes for one, before in zip(found.hosts, plain.hosts, strict=True)]
    assert more == [6 * chunk, 6 * chunk + launcher]
    assert found.largest_batch < plain.largest_batch
    rows = [line.split() for line in memory_table(found).splitlines() if line.startswith("launcher")]
    assert rows == [["launcher", "host1", *["0", "B"] * 5, "7", "MB", "7", "MB"]]
