"""Every worker writes its part of a variable on every server, and reads all of it.

With the name of a file it waits until that is there, reads again, and waits to be ended.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import tensorflow.compat.v1 as tf

from parallax.runtime.worker.ranks import current_process_group

members = current_process_group()
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
        if sys.argv[1:]:
            print(f"waits {members.rank}", flush=True)
            while not Path(sys.argv[1]).exists():
                time.sleep(0.1)
            print(f"then {[value.astype(int).tolist() for value in session.run(variables)]}", flush=True)
            members.workers.Barrier()
swapped = members.host_workers.alltoall([10 * members.rank, 10 * members.rank + 1])
print(f"from my host: {swapped}", flush=True)
ranks = members.host_workers.allgather(members.rank)
print(f"on {os.uname().nodename}, {ranks}, {members.server_addresses}", flush=True)
members.workers.Barrier()
if sys.argv[1:]:
    print(f"waits again {members.rank}", flush=True)
    subprocess.run(["sleep", "600"])
