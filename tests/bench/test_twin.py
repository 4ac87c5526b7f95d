"""The twin as a model of the race: sizes, time, and values."""

import argparse
import time

import numpy as np
import pytest
import tensorflow as tf

from ops.bench.race.accelerators import has_losses, slowed, twin_sizes
from ops.bench.race.command import add_command, wanted_of
from ops.bench.race.models import model_of
from ops.bench.twin import command

v1 = tf.compat.v1


def trained(steps=3, **sizes):
    """Losses of some steps and the seconds of the last."""
    model = model_of("twin", **sizes)
    with tf.Graph().as_default():
        built = model.build()
        train = built.optimizer.minimize(built.loss)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            losses = []
            for step in range(steps):
                feeds = {built.feeds[name]: value for name, value in model.batch(0, step).items()}
                began = time.monotonic()
                losses.append(float(session.run([built.loss, train], feeds)[0]))
            return losses, time.monotonic() - began


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("network", "divisor"), [("nmt", 64), ("resnet50", 64), ("inception_v3", 64), ("stack", 1), ("lm", 256)]
)
def test_a_step_takes_its_dilated_time_and_gives_zeros(network, divisor):
    losses, took_s = trained(network=network, step_s=0.04, dilation=20.0, divisor=divisor, batch_size=8)
    assert losses == [0.0] * 3
    assert took_s >= 0.8


def test_variables_are_divided_and_ids_are_not():
    model = model_of("twin", network="lm", divisor=16, batch_size=128)
    assert {table.name: (table.rows, table.width) for table in model.tables} == {
        "embedding": (793_470, 32),
        "softmax_w": (793_470, 32),
        "softmax_b": (793_470, 1),
    }
    batch = model.batch(0, 0)
    assert {name: np.shape(value) for name, value in batch.items()} == {
        "inputs": (2560,),
        "targets": (2560,),
        "sampled": (8192,),
        "signal": (),
    }
    with tf.Graph().as_default() as graph:
        model.build()
    shapes = {v.op.name: tuple(v.shape) for v in graph.get_collection("trainable_variables")}
    assert shapes["lstm_kernel"] == (64, 8192) and shapes["softmax_b"] == (793_470,)
    assert model.units == 2560 and model.device_s == pytest.approx(6.4)


def test_the_stack_computes_what_it_computes_without_an_accelerator():
    real, _ = trained(network="stack", divisor=1, batch_size=16, values="real", step_s=0.01, dilation=1.0)
    cores, _ = trained(network="stack", divisor=1, batch_size=16, values="cores")
    assert real == cores and len(set(real)) == 3


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"dilation": 0.0}, "dilation, divisor and batch_size must be above 0"),
        ({"values": "some"}, "values must be zeros, real or cores, got 'some'"),
        ({"divisor": 3}, "divisor must divide the 512 columns of embedding"),
        ({"network": "stack", "divisor": 2}, "stack is computed, so its divisor must be 1, got 2"),
        ({"network": "x"}, "A network must be one of"),
    ],
)
def test_sizes_of_which_no_model_can_be_made_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        model_of("twin", **sizes)


def wanted(*words):
    parser = argparse.ArgumentParser()
    add_command(parser.add_subparsers())
    return wanted_of(parser.parse_args(["race", *words]))


def test_sizes_are_the_clusters_and_links_are_slower_by_dilation_and_divisor():
    found = wanted("--accelerators", "today-25gbit", "--model", "resnet50")
    assert found.model == "twin"
    assert found.sizes == {
        "network": "resnet50",
        "step_s": pytest.approx(256 / 909, abs=1e-6),
        "batch_size": 256,
        "dilation": 16.0,
        "divisor": 64,
    }
    assert found.rate_bytes_per_s == round(25e9 / 8 / 1024)


def test_given_sizes_and_rates_come_before_the_clusters():
    sizes = ("--size", "dilation=8", "--size", "divisor=4")
    found = wanted("--accelerators", "2019", *sizes, "--rate", "40gbit")
    assert found.sizes == {**twin_sizes("2019", "lm", {}), "dilation": 8.0, "divisor": 4}
    assert found.rate_bytes_per_s == slowed(5e9, found.sizes) == round(5e9 / 32)


def test_without_accelerators_nothing_is_slower():
    assert (wanted().model, wanted().rate_bytes_per_s) == ("embed", 25_000_000)


def test_a_cluster_without_a_pace_for_a_network_says_so():
    with pytest.raises(SystemExit, match="On accelerators of 2019 a model must be one of lm, nmt, .* got 'dense'"):
        wanted("--accelerators", "2019", "--model", "dense")


@pytest.mark.parametrize(("values", "expected"), [("zeros", False), ("real", True), ("cores", True)])
def test_losses_are_compared_where_they_are_computed(values, expected):
    assert has_losses("twin", {"values": values}) is expected
    assert has_losses("embed", {})


def test_a_system_of_another_checkout_is_refused_before_anything_starts(capsys):
    parser = argparse.ArgumentParser()
    command.add_command(parser.add_subparsers())
    with pytest.raises(SystemExit):
        parser.parse_args(["twin", "--systems", "parallax,parallax-beside"])
    assert "parallax-beside needs another checkout. Use `race --beside DIR`." in capsys.readouterr().err
