"""Linear regression, as the examples of Parallax 2019 are written; only the import of TensorFlow is today's.

python linear_regression.py --resource_info_file=resource_info --max_steps=10
"""

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

flags = tf.app.flags
flags.DEFINE_string("resource_info_file", "localhost", "Filename containing cluster information")
flags.DEFINE_integer("max_steps", 20, "Number of iterations to run for each worker")
flags.DEFINE_integer("batch_size", 8, "Batch size of each worker")
flags.DEFINE_boolean("sync", True, "Train synchronously")
flags.DEFINE_string("run_option", "HYBRID", "HYBRID, PS or MPI")
flags.DEFINE_boolean("v1_behavior", True, "Whether to disable TensorFlow 2's behavior")
flags.DEFINE_string("result", None, "File that worker 0 writes the variables to")
FLAGS = flags.FLAGS

TRUE_W, TRUE_B = np.array([[2.0], [-3.4]], np.float32), 4.2


def build_model(batch_size):
    single_gpu_graph = tf.Graph()
    with single_gpu_graph.as_default():
        tf.set_random_seed(1)
        global_step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.float32, shape=[batch_size, 2], name="x")
        y = tf.placeholder(tf.float32, shape=[batch_size, 1], name="y")
        w = tf.get_variable("w", shape=[2, 1])
        b = tf.get_variable("b", shape=[], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(x, w) + b - y))
        optimizer = tf.train.GradientDescentOptimizer(0.1)
        grads_and_vars = optimizer.compute_gradients(loss)
        train_op = optimizer.apply_gradients(grads_and_vars, global_step=global_step)
    return single_gpu_graph, {"x": x, "y": y, "loss": loss, "train_op": train_op, "global_step": global_step}


def next_batch(step, worker_id, batch_size):
    draw = np.random.RandomState(1000 * step + worker_id)
    x = draw.normal(size=[batch_size, 2]).astype(np.float32)
    return {"x": x, "y": x @ TRUE_W + TRUE_B}


def main(_):
    if FLAGS.v1_behavior:
        tf.disable_v2_behavior()
    single_gpu_graph, ops = build_model(FLAGS.batch_size)

    parallax_config = parallax.Config()
    parallax_config.run_option = FLAGS.run_option
    parallax_config.average_sparse = True
    sess, num_workers, worker_id, num_replicas_per_worker = parallax.parallel_run(
        single_gpu_graph, FLAGS.resource_info_file, sync=FLAGS.sync, parallax_config=parallax_config
    )

    for i in range(FLAGS.max_steps):
        feed_dict = {"x:0": [], ops["y"]: []}
        for _ in range(num_replicas_per_worker):
            batch = next_batch(i, worker_id, FLAGS.batch_size)
            feed_dict["x:0"].append(batch["x"])
            feed_dict[ops["y"]].append(batch["y"])
        loss, global_step, _ = sess.run([ops["loss"], ops["global_step"], ops["train_op"]], feed_dict=feed_dict)
        parallax.log.info("step: %d, loss: %lf", global_step[0], loss[0])
        print("loss", loss[0])
    variables = sess.run({v.op.name: v for v in single_gpu_graph.get_collection("variables")})
    if worker_id == 0 and FLAGS.result:
        np.savez(FLAGS.result, **{name: value[0] for name, value in variables.items()})


if __name__ == "__main__":
    tf.app.run()
