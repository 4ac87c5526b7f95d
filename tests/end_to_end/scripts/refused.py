"""What parallel_run and Config refuse before anything is started. Argument: a folder to write to."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import tensorflow.compat.v1 as tf
from checks import refused, run_checks

import parallax
from parallax.cluster.profiles import AlphaBeta, ClusterProfile, HostProfile, ModelProfile
from parallax.entry import api
from parallax.plans.plan import one_host
from parallax.runtime.verify.command import check_feeds
from parallax.settings.environment import Settings

tf.disable_v2_behavior()
folder = Path(sys.argv[1])


def nothing_may_start(*arguments):
    raise AssertionError("a job was started")


api.launch = nothing_may_start


def model(optimizer=None, lookup_rows=11, batch=None):
    """An embedding and a dense layer; no update op without an optimizer."""
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int32, [batch], name="ids")
        emb = tf.get_variable("emb", [lookup_rows, 4])
        weights = tf.get_variable("weights", [4, 1])
        loss = tf.reduce_mean(tf.square(tf.nn.embedding_lookup(emb, ids) @ weights))
        if optimizer is not None:
            optimizer.minimize(loss)
    return graph


def sgd():
    return tf.train.GradientDescentOptimizer(0.1)


def run(graph=None, resource=None, sync=True, **config):
    return lambda: parallax.parallel_run(
        graph if graph is not None else model(sgd()), resource, sync, parallax.Config(**config)
    )


def a_graph_that_does_not_train_is_refused():
    without = tf.Graph()
    with without.as_default():
        tf.get_variable("w", [3], trainable=False)
    refused(parallax.GraphError, "trainable variable", run(without))
    refused(parallax.GraphError, "single_gpu_graph is empty", run(tf.Graph()))
    refused(parallax.GraphError, "Call optimizer.minimize", run(model()))
    refused(parallax.GraphError, "tf.Graph", lambda: parallax.parallel_run(None))
    refused(parallax.GraphError, "tf.Graph", lambda: parallax.parallel_run("train.py"))
    refused(parallax.GraphError, "tf.Graph", lambda: parallax.parallel_run(model(sgd()).as_graph_def()))


def an_update_op_without_a_rule_is_refused():
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, [None, 4])
        w = tf.get_variable("w", [4, 4])
        (gradient,) = tf.gradients(tf.reduce_mean(tf.square(x @ w)), [w])
        tf.assign(w, w - x[0, 0] * gradient)
    refused(parallax.GraphError, "Assign", run(graph, layouts=False))


def an_override_must_name_a_variable_and_a_possible_route():
    refused(parallax.PlanError, "no variable 'embb'. Did you mean: emb", run(routes={"embb": "alltoall"}))
    refused(parallax.PlanError, "'weights' cannot take route alltoall", run(routes={"weights": "alltoall"}))
    refused(parallax.ConfigError, "allreduce, allgather, alltoall, ps", run(routes={"emb": "ring"}))
    refused(parallax.PlanError, "fewer rows (1) than workers (2)", run(model(sgd(), 1), routes={"emb": "alltoall"}))
    refused(parallax.PlanError, "no variable 'wat'", run(touched_rows={"wat": 3}))
    refused(parallax.PlanError, "between 1 and", run(touched_rows={"emb": 12}))
    refused(parallax.ConfigError, "an integer of at least 1", run(touched_rows={"emb": 0}))


def a_plan_file_must_belong_to_the_graph():
    file = folder / "plan.json"
    refused(parallax.PlanError, "plan.json: cannot read the plan file", run(plan_file=file))
    for text, message in (
        ("{\n'", "plan.json:2: a plan file must be JSON"),
        ("[]", "version"),
        ('{"version": 99}', "version 3, got 99"),
        ('{"version": 3}', "not as `parallax plan --json` writes it"),
        ("\ufeff{}", "JSON"),
    ):
        file.write_text(text, encoding="utf-8")
        refused(parallax.PlanError, message, run(plan_file=file))
    file.write_bytes(b"\xff\xfe{}")
    refused(parallax.PlanError, "UTF-8", run(plan_file=file))
    plan = plan_of(model(sgd()), 2)
    file.write_text(plan.to_json(), encoding="utf-8")
    refused(parallax.PlanError, "was made for another graph", run(model(sgd(), 12), plan_file=file))
    refused(parallax.PlanError, "was made for 2 workers, but the job has 3", run(plan_file=file, workers=3))
    refused(AssertionError, "a job was started", run(plan_file=file, workers=2))
    for change in (
        {"variables": []},
        {"variables": [v for v in json.loads(plan.to_json())["variables"] if v["name"] != "emb"]},
        {"variables": [{**v, "route": "alltoall"} for v in json.loads(plan.to_json())["variables"]]},
        {"variables": [{**v, "route": "pigeon"} for v in json.loads(plan.to_json())["variables"]]},
        {"num_workers": "2"},
    ):
        file.write_text(json.dumps({**json.loads(plan.to_json()), **change}), encoding="utf-8")
        refused(parallax.PlanError, "", run(plan_file=file, workers=2))


def plan_of(graph, workers):
    from parallax.analysis.graph_to_plan import analyse, plan_for

    return plan_for(analyse(graph), one_host(workers), parallax.Config())


def profiles_must_belong_to_the_job():
    cluster, profile = folder / "cluster.json", folder / "profile.json"
    refused(parallax.PlanError, "cluster.json: cannot read the profile", run(cluster_profile=cluster))
    machines = tuple(HostProfile(name, 2, 1 << 30, 1e9, 1e9) for name in ("localhost", "far"))
    lines = {operation: AlphaBeta(1e-3, 1e-4, 1e-9, 0.1, 9) for operation in ("allreduce", "alltoall", "allgather")}
    cluster.write_text(ClusterProfile(1, machines, lines, lines).to_json(), encoding="utf-8")
    refused(
        parallax.PlanError, "has localhost, far, but the job has localhost", run(cluster_profile=cluster, workers=2)
    )
    cluster.write_text(ClusterProfile(1, machines[:1], {}, lines).to_json(), encoding="utf-8")
    refused(AssertionError, "a job was started", run(cluster_profile=cluster, workers=2))
    cluster.write_text('{"version": 1}', encoding="utf-8")
    refused(parallax.PlanError, "must be as `parallax calibrate` writes it", run(cluster_profile=cluster))
    profile.write_text(ModelProfile(1, "0" * 64, "", 9, "sample batches", ()).to_json(), encoding="utf-8")
    refused(parallax.PlanError, "profile.json is of model 000000000000", run(model_profile=profile))


def a_resource_file_must_parse():
    file = folder / "machines"
    refused(parallax.ResourceFileError, "machines", run(resource=file))
    file.write_text("localhost: 0,x\n")
    refused(parallax.ResourceFileError, f"{file}:1: ", run(resource=str(file)))
    file.write_text("hosts:\n  - localhost\n  - address: other\n    wheels: 4\n")
    refused(parallax.ResourceFileError, f"{file}:4: wheels", run(resource=file))
    file.write_text("hosts: 3\n")
    refused(parallax.ResourceFileError, f"{file}:1: hosts: expected", run(resource=file))
    file.write_text("localhost\nfar_away\n")
    refused(parallax.ConfigError, "got 'far_away'", run(resource=file))
    refused(parallax.ConfigError, "resource", run(resource=3))


def a_verification_must_have_feeds_of_the_graph():
    def check(workers=2, **wanted):
        return lambda: check_feeds(model(sgd()), [range(workers)], Settings(**wanted))

    code = folder / "feeds.py"
    code.write_text(
        "def unknown(step, worker, num_workers):\n    return {'idz': [1]}\n"
        "def no_dict(step, worker, num_workers):\n    return [1]\n"
        "def rate(step, worker, num_workers):\n    return {'ids': worker}\n"
    )
    arrays, broken = folder / "feeds.npz", folder / "broken.npz"
    np.savez(arrays, ids=np.zeros([5, 9], int), rate=np.zeros(5))
    broken.write_bytes(b"PK\x03\x04 no zip file")
    error = parallax.ConfigError
    refused(error, "placeholders (ids)", check())
    refused(error, "--fetch must name an op or tensor", check(fetch="nothing"))
    refused(error, "name a tensor of the graph, got 'idz'", check(feeds=f"{code}:unknown"))
    refused(error, "must return a dict", check(feeds=f"{code}:no_dict"))
    refused(error, "scalar feed must be equal on all workers, but 'ids:0' is [0, 1]", check(feeds=f"{code}:rate"))
    refused(error, "has not defined 'nothing'", check(feeds=f"{code}:nothing"))
    refused(error, "FILE.py:FUNCTION of a file that exists", check(feeds=str(code)))
    refused(error, "broken.npz: feeds must be an .npz file", check(feeds=str(broken)))
    refused(error, "nowhere.npz: feeds must be an .npz file", check(feeds="nowhere.npz"))
    refused(error, "9 rows per step, which cannot be divided evenly among 2 workers", check(feeds=str(arrays)))
    refused(error, "name a tensor of the graph, got 'rate'", check(feeds=str(arrays), workers=3))


def a_value_of_the_configuration_must_make_sense():
    error = parallax.ConfigError
    for field, values in {
        "workers": (0, -1, 2.0, "2", True),
        "seed": (0, -3, 2**31, "x", 1.5),
        "stall_timeout_s": (0, -1, math.nan, "60", None),
        "routes": ({"emb": 3}, {3: "alltoall"}, ["emb"], None, "alltoall"),
        "touched_rows": ({"emb": "3"}, {"emb": 1.5}, {"emb": True}, 7),
        "plan_file": (3, ["a"]),
        "cluster_profile": (3, ["a"]),
        "model_profile": (True, {}),
        "sess_config": ("gpu", {"allow_soft_placement": True}),
        "hooks": ([3], 3, [tf.train.StopAtStepHook], None),
    }.items():
        for value in values:
            refused(error, field, lambda field=field, value=value: parallax.Config(**{field: value}))
    parallax.Config(stall_timeout_s=math.inf, sess_config=tf.ConfigProto(), hooks=(tf.train.NanTensorHook(None),))
    refused(error, "parallax.Config", lambda: parallax.parallel_run(model(sgd()), None, True, {"workers": 2}))
    refused(error, "parallax.Config", lambda: parallax.parallel_run(model(sgd()), None, True, parallax.Config))
    refused(error, "sync must be", run(sync="no"))
    refused(parallax.PlanError, "run option MPI starts", run(sync=False, run_option="MPI"))


run_checks(
    [
        a_graph_that_does_not_train_is_refused,
        an_update_op_without_a_rule_is_refused,
        an_override_must_name_a_variable_and_a_possible_route,
        a_plan_file_must_belong_to_the_graph,
        profiles_must_belong_to_the_job,
        a_resource_file_must_parse,
        a_verification_must_have_feeds_of_the_graph,
        a_value_of_the_configuration_must_make_sense,
    ]
)
