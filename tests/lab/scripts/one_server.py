"""A variable on the one server, on a host without workers."""

import tensorflow.compat.v1 as tf

from parallax.runtime.worker.ranks import current_process_group

members = current_process_group()
members.start()
with tf.Graph().as_default():
    with tf.device("/job:ps/task:0"):
        variable = tf.get_variable("v", initializer=1.5)
    with tf.Session(members.target) as session:
        if members.rank == 0:
            session.run(variable.initializer)
        members.workers.Barrier()
        print(f"server 0 has {session.run(variable)}", flush=True)
