"""What the scripts of these tests share: checks that every rank runs in the same order, and a verdict at the end."""

import sys
import traceback

import tensorflow.compat.v1 as tf


def as_written(**options):
    """Session options with which TensorFlow runs a graph as it is: it rewrites it anew for each set of fetches."""
    config = tf.ConfigProto(**options)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.graph_options.optimizer_options.opt_level = tf.OptimizerOptions.L0
    return config


def run_checks(checks):
    """Runs all checks, shows what failed, and prints a last line when nothing did."""
    failed = []
    for check in checks:
        try:
            check()
        except Exception:
            failed.append(check.__name__)
            traceback.print_exc()
    if failed:
        sys.exit(f"did not hold: {', '.join(failed)}")
    print("all good", flush=True)


def refused(kind, text, call):
    """Whether `call` raises an error of `kind` whose message holds `text`."""
    try:
        call()
    except kind as error:
        if text not in str(error):
            raise AssertionError(f"{text!r} is not in the message: {error}") from error
    else:
        raise AssertionError(f"nothing was raised, and {kind.__name__} was expected")
