"""Counts what leaves a host in steps whose rows its workers share. Arguments: the route, whether they are merged."""

import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf

import parallax
from parallax.runtime.worker.ranks import current_process_group

ROUTE, MERGED = sys.argv[1], sys.argv[2] == "merged"
ROWS, WIDTH, IDS, STEPS = 20_000, 128, 1_500, 12
ROW_BYTES = 4 * WIDTH
ID_BYTES = {"alltoall": 4, "ps": 4 + 8}[ROUTE]  # asked for by 4 bytes; accumulators number rows in 8

graph = tf.Graph()
with graph.as_default():
    ids = tf.placeholder(tf.int64, [IDS], name="ids")
    emb = tf.get_variable("emb", [ROWS, WIDTH], initializer=tf.zeros_initializer())
    looked_up = tf.nn.embedding_lookup(emb, ids)
    # The gradient takes the rows: those that nobody takes are not sent back.
    train = tf.train.AdagradOptimizer(0.5).minimize(tf.reduce_mean(tf.square(looked_up - 1.0)))

communication = parallax.CommunicationConfig(parallax.PSConfig(local_aggregation=MERGED))
config = parallax.Config(routes={"emb": ROUTE}, seed=1, communication_config=communication)
sess, num_workers, worker_id, _ = parallax.parallel_run(graph, parallax_config=config)
members = current_process_group()


def batch(step, worker):
    """Two thirds of the ids are those of the host, in another order; the rest is the worker's own."""
    shared = np.random.default_rng([step, members.parcel.hosts[worker]]).integers(0, ROWS, 2 * IDS // 3)
    own = np.random.default_rng([step, 100 + worker]).integers(0, ROWS, IDS // 3)
    return np.random.default_rng(worker).permutation(np.concatenate([shared, own]))


def sent_bytes():
    """What has left this host so far."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    return sum(int(line.split()[9]) for line in lines if not line.strip().startswith("lo:"))


def formula(host, steps):
    """Ids and gradient rows to the other host's owners, and the rows that its workers ask for."""
    owners = num_workers if ROUTE == "alltoall" else 2
    host_of_owner = np.array(members.parcel.hosts if ROUTE == "alltoall" else [0, 1])
    total = 0
    for step in steps:
        for other in (0, 1):
            asking = [w for w in range(num_workers) if members.parcel.hosts[w] == other]
            groups = [asking] if MERGED else [[w] for w in asking]
            for group in groups:
                rows = np.unique(np.concatenate([batch(step, w) for w in group]))
                here = int(np.sum(host_of_owner[rows % owners] == host))
                total += here * ROW_BYTES if other != host else (len(rows) - here) * (ID_BYTES + ROW_BYTES)
    return total


with sess:
    for step in range(3):  # first steps set up connections
        sess.run(train, {ids: [batch(step, worker_id)]})
    members.workers.Barrier()
    before = sent_bytes()
    members.workers.Barrier()
    for step in range(3, 3 + STEPS):
        sess.run(train, {ids: [batch(step, worker_id)]})
    members.workers.Barrier()
    left = sent_bytes() - before
    members.workers.Barrier()
host = members.parcel.hosts[worker_id]
if worker_id % 2 == 0:
    expected = formula(host, range(3, 3 + STEPS))
    print(f"host {host} sent {left} bytes, formula {expected}, {left / expected - 1:+.1%}", flush=True)
