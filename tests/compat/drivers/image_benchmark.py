"""Images on made-up data, as the benchmark of Parallax 2019 is written: tf.layers, whose seeds nobody sets.

TF_USE_LEGACY_KERAS=1 python image_benchmark.py --resource_info_file=resource_info
"""

import hashlib
import time

import numpy as np
import tensorflow.compat.v1 as tf

import parallax

flags = tf.app.flags
flags.DEFINE_string("resource_info_file", "localhost", "Filename containing cluster information")
flags.DEFINE_integer("num_batches", 4, "Number of batches to run")
flags.DEFINE_integer("batch_size", 4, "Batch size of each worker")
flags.DEFINE_integer("display_every", 2, "Number of steps between two lines of output")
flags.DEFINE_string("run_option", "HYBRID", "HYBRID, PS or MPI")
flags.DEFINE_string("train_dir", None, "Directory to save checkpoints")
flags.DEFINE_string("profile_dir", None, "Directory to save traces")
flags.DEFINE_string("profile_steps", None, "Steps to trace, with commas")
FLAGS = flags.FLAGS

CLASSES, SIDE, DECAY = 5, 12, 0.9


def convolution(images, depth, stride, training):
    images = tf.layers.conv2d(images, depth, 3, stride, padding="same", use_bias=False)
    return tf.nn.relu(tf.layers.batch_normalization(images, momentum=DECAY, training=training))


def build_model():
    single_gpu_graph = tf.Graph()
    with single_gpu_graph.as_default():
        global_step = tf.train.get_or_create_global_step()
        shape = [FLAGS.batch_size, SIDE, SIDE, 3]
        images = tf.Variable(tf.truncated_normal(shape), trainable=False, name="gpu_cached_images")
        labels = tf.random_uniform([FLAGS.batch_size], 0, CLASSES, tf.int32, name="synthetic_labels")
        net = convolution(images, 8, 2, training=True)
        net = net + convolution(net, 8, 1, training=True)
        net = tf.layers.dropout(tf.layers.flatten(net), 0.2, training=True)
        logits = tf.layers.dense(net, CLASSES, kernel_regularizer=tf.keras.regularizers.l2(1e-4))
        loss = tf.losses.sparse_softmax_cross_entropy(labels, logits) + tf.losses.get_regularization_loss()
        rate = tf.train.exponential_decay(0.1, global_step, 100, 0.9, staircase=True)
        optimizer = tf.train.MomentumOptimizer(rate, 0.9)
        with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
            train_op = optimizer.minimize(loss, global_step=global_step)
        tf.summary.scalar("learning_rate", rate)
        summary_op = tf.summary.merge_all()
    return single_gpu_graph, {"loss": loss, "train_op": train_op, "step": global_step}, summary_op


def build_config():
    profile_steps = [int(step) for step in FLAGS.profile_steps.split(",")] if FLAGS.profile_steps else []
    config = parallax.Config()
    config.run_option = FLAGS.run_option
    config.average_sparse = False
    config.sess_config = tf.ConfigProto(allow_soft_placement=True, log_device_placement=False)
    config.communication_config = parallax.CommunicationConfig(
        parallax.PSConfig(protocol="grpc", replicate_variables=True), parallax.MPIConfig(mpirun_options="")
    )
    config.ckpt_config = parallax.CheckPointConfig(ckpt_dir=FLAGS.train_dir, save_ckpt_steps=2)
    config.profile_config = parallax.ProfileConfig(profile_dir=FLAGS.profile_dir, profile_steps=profile_steps)
    return config


def main(_):
    tf.disable_v2_behavior()
    single_gpu_graph, fetches, summary_op = build_model()
    sess, num_workers, worker_id, _ = parallax.parallel_run(
        single_gpu_graph, FLAGS.resource_info_file, sync=True, parallax_config=build_config()
    )
    began = time.time()
    for step in range(1, FLAGS.num_batches + 1):
        results = sess.run(fetches)
        if step % FLAGS.display_every == 0:
            speed = FLAGS.display_every * FLAGS.batch_size * num_workers / (time.time() - began)
            parallax.log.info("%d images/sec: %.1f loss: %.3f", results["step"][0], speed, results["loss"][0])
            began = time.time()
            if worker_id == 0:
                sess.run(summary_op)
    values = sess.run(list(single_gpu_graph.get_collection("trainable_variables")))
    digest = hashlib.sha256(b"".join(np.asarray(value[0]).tobytes() for value in values))
    print("trained", len(values), digest.hexdigest(), flush=True)


if __name__ == "__main__":
    tf.app.run()
