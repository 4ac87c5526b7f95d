"""A language model with sampled softmax, as the examples of Parallax 2019 are written: lists of feeds, one per replica.

TensorFlow's own cells are in tf_keras now: --library_cells takes them, with the seeds that they draw, and needs
TF_USE_LEGACY_KERAS=1. Without it an LSTM cell is written out here.
"""

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

flags = tf.app.flags
flags.DEFINE_string("resource_info_file", "localhost", "Filename containing cluster information")
flags.DEFINE_integer("max_steps", 16, "Number of iterations to run for each worker")
flags.DEFINE_integer("batch_size", 4, "Batch size of each worker")
flags.DEFINE_boolean("sync", True, "Train synchronously")
flags.DEFINE_string("run_option", "HYBRID", "HYBRID, PS or MPI")
flags.DEFINE_boolean("replicate_variables", True, "Option of servers")
flags.DEFINE_string("protocol", "grpc", "Option of servers")
flags.DEFINE_string("mpirun_options", "", "Options of mpirun")
flags.DEFINE_string("ckpt_dir", None, "Directory to save checkpoints")
flags.DEFINE_integer("save_ckpt_steps", None, "Steps between checkpoints")
flags.DEFINE_string("profile_dir", None, "Directory to save traces")
flags.DEFINE_list("profile_steps", None, "Steps to trace")
flags.DEFINE_integer("profile_worker", None, "Worker to trace")
flags.DEFINE_string("redirect_path", None, "Directory for the output of the workers")
flags.DEFINE_string("export_graph_path", None, "Directory for the graphs of the workers")
flags.DEFINE_boolean("v1_behavior", True, "Whether to disable TensorFlow 2's behavior")
flags.DEFINE_boolean("fixed_samples", False, "Take the same samples in every step, so that results can be compared")
flags.DEFINE_boolean("library_cells", False, "Take TensorFlow's cells, and set no seed")
flags.DEFINE_string("result", None, "File that worker 0 writes the variables to")
FLAGS = flags.FLAGS

VOCABULARY, WIDTH, UNITS, STEPS, SAMPLED = 53, 8, 12, 5, 10


class LSTMCell:
    """What `tf.nn.dynamic_rnn` asks of a cell."""

    def __init__(self, width, units):
        self.state_size, self.output_size = (units, units), units
        self._kernel = tf.get_variable("kernel", [width + units, 4 * units])
        self._bias = tf.get_variable("bias", [4 * units], initializer=tf.zeros_initializer())

    def zero_state(self, batch_size, dtype):
        return tuple(tf.zeros([batch_size, size], dtype) for size in self.state_size)

    def __call__(self, inputs, state, scope=None):
        c, h = state
        gates = tf.matmul(tf.concat([inputs, h], 1), self._kernel) + self._bias
        i, j, f, o = tf.split(gates, 4, axis=1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, (c, h)


def build_model(batch_size, fixed_samples):
    single_gpu_graph = tf.Graph()
    with single_gpu_graph.as_default():
        if not FLAGS.library_cells:
            tf.set_random_seed(1)
        global_step = tf.train.get_or_create_global_step()
        x = tf.placeholder(tf.int32, [batch_size, STEPS], name="x")
        y = tf.placeholder(tf.int32, [batch_size, STEPS], name="y")
        w = tf.placeholder(tf.float32, [batch_size, STEPS], name="w")
        partitioner = parallax.get_partitioner(4)
        with tf.variable_scope("model", initializer=tf.uniform_unit_scaling_initializer()):
            emb = tf.get_variable("emb", [VOCABULARY, WIDTH], partitioner=partitioner)
            softmax_w = tf.get_variable("softmax_w", [VOCABULARY, UNITS], partitioner=partitioner)
            softmax_b = tf.get_variable("softmax_b", [VOCABULARY], partitioner=partitioner)
            with tf.variable_scope("lstm"):
                cell = tf.nn.rnn_cell.LSTMCell(UNITS) if FLAGS.library_cells else LSTMCell(WIDTH, UNITS)
        if FLAGS.library_cells:
            cell = tf.nn.rnn_cell.DropoutWrapper(cell, input_keep_prob=0.9)
        inputs = tf.nn.embedding_lookup(emb, x)
        outputs, _ = tf.nn.dynamic_rnn(cell, inputs, initial_state=cell.zero_state(batch_size, tf.float32))
        targets = tf.reshape(y, [-1, 1])
        samples = None
        if fixed_samples:
            chosen = tf.constant(np.arange(3, 3 + SAMPLED), tf.int64)
            samples = chosen, tf.fill([batch_size * STEPS, 1], 0.2), tf.fill([SAMPLED], 0.2)
        losses = tf.nn.sampled_softmax_loss(
            softmax_w,
            softmax_b,
            tf.cast(targets, tf.int64),
            tf.reshape(outputs, [-1, UNITS]),
            SAMPLED,
            VOCABULARY,
            sampled_values=samples,
            partition_strategy="div",
        )
        loss = tf.reduce_mean(losses * tf.reshape(w, [-1]))
        all_vars = tf.trainable_variables()
        lstm_vars = [v for v in all_vars if "lstm" in v.name]
        table_vars = [v for v in all_vars if "lstm" not in v.name]
        grads = tf.gradients(loss, table_vars + lstm_vars)
        table_grads, lstm_grads = grads[: len(table_vars)], grads[len(table_vars) :]
        table_grads = [tf.IndexedSlices(2.0 * g.values, g.indices, g.dense_shape) for g in table_grads]
        clipped_grads, norm = tf.clip_by_global_norm(lstm_grads, 1.0)
        optimizer = tf.train.AdagradOptimizer(0.5, initial_accumulator_value=1.0)
        pairs = zip(table_grads + clipped_grads, table_vars + lstm_vars)  # noqa: B905  # as in 2019
        train_op = optimizer.apply_gradients(pairs, global_step=global_step)
    return single_gpu_graph, {"x": x, "y": y, "w": w, "loss": loss, "train_op": train_op, "global_step": global_step}


def next_batch(step, worker_id, batch_size):
    """Sentences that count on in steps of three, so that there is something to learn."""
    draw = np.random.RandomState(1000 * step + worker_id)
    first = draw.randint(VOCABULARY, size=[batch_size, 1])
    words = (first + 3 * np.arange(STEPS + 1)) % VOCABULARY
    return {"x": words[:, :-1], "y": words[:, 1:], "w": np.ones([batch_size, STEPS], np.float32)}


def build_config():
    ckpt_config = parallax.CheckPointConfig(ckpt_dir=FLAGS.ckpt_dir, save_ckpt_steps=FLAGS.save_ckpt_steps)
    ps_config = parallax.PSConfig(replicate_variables=FLAGS.replicate_variables, protocol=FLAGS.protocol)
    mpi_config = parallax.MPIConfig(mpirun_options=FLAGS.mpirun_options)
    parallax_config = parallax.Config()
    parallax_config.run_option = FLAGS.run_option
    parallax_config.average_sparse = True
    parallax_config.communication_config = parallax.CommunicationConfig(ps_config, mpi_config)
    parallax_config.ckpt_config = ckpt_config
    profile_steps = [int(step) for step in FLAGS.profile_steps] if FLAGS.profile_steps else []
    parallax_config.profile_config = parallax.ProfileConfig(
        profile_dir=FLAGS.profile_dir, profile_steps=profile_steps, profile_worker=FLAGS.profile_worker
    )
    parallax_config.redirect_path = FLAGS.redirect_path
    parallax_config.export_graph_path = FLAGS.export_graph_path
    return parallax_config


def main(_):
    if FLAGS.v1_behavior:
        tf.disable_v2_behavior()
    single_gpu_graph, ops = build_model(FLAGS.batch_size, FLAGS.fixed_samples)
    sess, num_workers, worker_id, num_replicas_per_worker = parallax.parallel_run(
        single_gpu_graph, FLAGS.resource_info_file, sync=FLAGS.sync, parallax_config=build_config()
    )

    fetches = {"global_step": ops["global_step"], "loss": ops["loss"], "train_op": ops["train_op"]}
    for local_step in range(FLAGS.max_steps):
        batches = [next_batch(local_step, worker_id, FLAGS.batch_size) for _ in range(num_replicas_per_worker)]
        feeds = {ops[name]: [batch[name] for batch in batches] for name in ("x", "y", "w")}
        fetched = sess.run(fetches, feeds)
        parallax.log.info("step: %d, train loss: %f", fetched["global_step"][0], np.mean(fetched["loss"]))
        print("loss", np.mean(fetched["loss"]))
    variables = sess.run({v.op.name: v for v in single_gpu_graph.get_collection("variables")})
    if worker_id == 0 and FLAGS.result:
        np.savez(FLAGS.result, **{name: value[0] for name, value in variables.items()})


if __name__ == "__main__":
    tf.app.run()
