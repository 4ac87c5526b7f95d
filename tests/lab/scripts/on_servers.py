"""Every worker writes its part of a variable on every server, and reads all of it."""

import os
import subprocess
import sys

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

from parallax.runtime.members import current_members

members = current_members()
members.start()
graph = tf.Graph()
with graph.as_default():
    variables = []
    for task in range(len(members.server_addresses)):
        with tf.device(f"/job:ps/task:{task}"):
            variables.append(tf.get_variable(f"v{task}", [members.size], initializer=tf.zeros_initializer()))
    updates = [tf.scatter_add(variable, [members.rank], [1.0 + members.rank]) for variable in variables]
    with tf.Session(members.target) as session:
        if members.rank == 0:
            session.run(tf.global_variables_initializer())
        members.workers.Barrier()
        session.run(updates)
        members.workers.Barrier()
        for task, value in enumerate(session.run(variables)):
            print(f"server {task} has {value.astype(int).tolist()}", flush=True)
with tf.Graph().as_default():
    own = tf.constant(np.arange(2, dtype=np.float32) + 10 * members.rank)
    swapped, _ = hvd.alltoall(own, tf.constant([1, 1]), process_set=members.host_set, name="in_host")
    with tf.Session() as session:
        print(f"from my host: {session.run(swapped).astype(int).tolist()}", flush=True)
print(f"on {os.uname().nodename}, {sorted(members.host_set.ranks)}, {members.server_addresses}", flush=True)
members.workers.Barrier()
if sys.argv[1:] == ["wait"]:
    print(f"waits {members.rank}", flush=True)
    subprocess.run(["sleep", "600"])
