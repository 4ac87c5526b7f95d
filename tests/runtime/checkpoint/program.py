"""Runs under mpirun with three workers: writes and reads checkpoints in many ways, each check on all ranks.

    python -m tests.runtime.checkpoint.program RESULT.json FOLDER

Rank 0 writes the names of the checks that were made. All ranks see FOLDER, and write there.
"""

from __future__ import annotations

import errno
import faulthandler
import functools
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("HOROVOD_CYCLE_TIME", "1")
os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")  # sums of tensors sent together depend on which those are

from mpi4py import MPI  # noqa: E402

from parallax.analysis.reading.construction import record  # noqa: E402

record.install()

import horovod.tensorflow as hvd  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from ops.exactness.session import as_written  # noqa: E402
from parallax.analysis.graph_to_plan import analyse, rewrites_of  # noqa: E402
from parallax.analysis.planner import make_plan  # noqa: E402
from parallax.analysis.reading.capture import initialization_phases  # noqa: E402
from parallax.base.errors import CheckpointError, PlanError  # noqa: E402
from parallax.plans.plan import PlanConstraints, one_host  # noqa: E402
from parallax.runtime.checkpoint.checkpoint_io import Storage  # noqa: E402
from parallax.runtime.checkpoint.concurrent_checkpoints import _InProgress, prepare_concurrent_checkpoints  # noqa: E402
from parallax.runtime.checkpoint.format.bundle import Bundle  # noqa: E402
from parallax.runtime.checkpoint.format.folder import FilesFailed, Retention, latest  # noqa: E402
from parallax.runtime.checkpoint.format.stored_tensors import stored_variables  # noqa: E402
from parallax.runtime.checkpoint.format.writer import Writer  # noqa: E402
from parallax.runtime.checkpoint.rows import freeze  # noqa: E402
from parallax.runtime.checkpoint.rows.access_to_rows import build_access  # noqa: E402
from parallax.runtime.checkpoint.rows.freeze import CannotFreeze  # noqa: E402
from parallax.runtime.checkpoint.rows.variable_rows import ShardedRows  # noqa: E402
from parallax.runtime.replan.change_over import places_of  # noqa: E402
from parallax.runtime.worker.barrier import barrier  # noqa: E402
from parallax.runtime.worker.session.channels import open_channels  # noqa: E402
from parallax.runtime.worker.teams import Teams  # noqa: E402
from parallax.transform.building.editor import Worker  # noqa: E402
from parallax.transform.pipeline import transform  # noqa: E402

v1 = tf.compat.v1
COMM = MPI.COMM_WORLD
RANK = COMM.Get_rank()
FOLDER = Path(sys.argv[2])
CHUNK_BYTES = 64  # four rows of four float32; two of the table of float64
STEPS = 3
freeze._SILENT_S = 2  # a stopped copy is found out sooner than for users
UNEQUAL, OTHERS = (2, 0, 0, 2, 2, 0), (1, 0, 1)  # owners of rows in turns; of three, worker 1 owns nothing


def build(use_resource, emb_rows=11, extra=False):
    """Tables, one of them in parts, and variables of many types that all workers hold."""
    graph = tf.Graph()
    with graph.as_default(), v1.variable_scope("", use_resource=use_resource):
        v1.set_random_seed(3)
        ids = v1.placeholder(tf.int64, [6], name="ids")
        y = v1.placeholder(tf.float32, [6, 1], name="y")
        emb = v1.get_variable("emb", [emb_rows, 4])
        parted = v1.get_variable("parted", [13, 4], partitioner=v1.fixed_size_partitioner(3))
        double = v1.get_variable("double", [7, 3], tf.float64)
        tiny = v1.get_variable("tiny", [5, 2])
        bias = v1.get_variable("bias", [11])
        w = v1.get_variable("w", [4, 1])
        columns = v1.get_variable("columns", [2, 5], partitioner=v1.fixed_size_partitioner(2, axis=1))
        v1.get_variable("half", initializer=tf.cast(tf.range(15), tf.bfloat16), trainable=False)
        v1.get_variable("counts", initializer=tf.reshape(tf.range(14, dtype=tf.int64), [7, 2]), trainable=False)
        v1.get_variable("flags", initializer=tf.constant([True, False, True]), trainable=False)
        v1.get_variable("words", initializer=tf.constant(["one", "two"]), trainable=False)
        v1.get_variable("scalar", initializer=tf.constant(2.5), trainable=False)
        if extra:
            v1.get_variable("added", [2], trainable=False)
        h = tf.nn.embedding_lookup(emb, ids) + v1.nn.embedding_lookup(parted, ids)
        h += tf.cast(tf.reduce_sum(tf.nn.embedding_lookup(double, ids % 7), 1, keepdims=True), tf.float32)
        h += tf.reduce_sum(tf.nn.embedding_lookup(tiny, ids % 5), 1, keepdims=True) + tf.reduce_sum(columns)
        loss = tf.reduce_mean(tf.square(h @ w + tf.expand_dims(tf.gather(bias, ids), 1) - y))
        step = v1.train.get_or_create_global_step()
        v1.train.AdamOptimizer(0.05).minimize(loss, global_step=step, name="train")
    return graph


@functools.cache
def analysed_graph(*arguments):
    """A graph for jobs, which change nothing in it, and what is known of it."""
    graph = build(*arguments)
    return graph, analyse(graph)


@functools.cache
def graph_of_one_process(*arguments):
    """A graph with a Saver, and that."""
    graph = build(*arguments)
    with graph.as_default():
        return graph, v1.train.Saver(v1.global_variables())


class Job:
    """A graph on some of the ranks, with a session in which initializers have run; closed after a `with` block."""

    def __init__(self, built, route, comm=COMM, chunk_bytes=CHUNK_BYTES, folder=FOLDER, pattern=()):
        graph, analysed = built
        size, rank = comm.Get_size(), comm.Get_rank()
        routes = {}
        for variable in analysed.spec.variables:
            try:
                make_plan(analysed.spec, one_host(size), PlanConstraints(routes={variable.name: route}))
                routes[variable.name] = route
            except PlanError:
                continue
        plan = make_plan(analysed.spec, one_host(size), PlanConstraints(routes=routes))
        spread = {v.name for v in plan.variables if v.route == "alltoall"}
        plan = replace(
            plan,
            variables=tuple(replace(v, owner_pattern=pattern if v.name in spread else ()) for v in plan.variables),
        )
        self.made = transform(analysed.captured.view, rewrites_of(analysed, plan), Worker(rank, size, 7))
        open_channels(self.made.graph_def, Teams(comm))
        self.graph, worker_graph = graph, tf.Graph()
        with worker_graph.as_default():
            tf.graph_util.import_graph_def(self.made.graph_def, name="")
            held = build_access(stored_variables(graph), places_of(self.made), comm)
            self.storage = Storage(str(folder), held, comm, chunk_bytes)
            self.beside = prepare_concurrent_checkpoints(self.storage)
        self.session = v1.Session(graph=worker_graph, config=as_written())
        for phase in initialization_phases(analysed.captured):
            self.session.run(phase)
        self.session.run(self.made.counter_initializers)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.session.close()

    def train(self, steps=STEPS):
        for step in range(steps):
            draw = np.random.RandomState(100 * step + RANK)
            self.session.run("train", {"ids:0": draw.randint(0, 11, 6), "y:0": draw.rand(6, 1)})

    def values(self):
        """Every variable whole, by name of its op; all workers of the job must call it."""
        variables = self.graph.get_collection("variables")
        tensors = {v.op.name: self.graph.as_graph_element(v).name for v in variables}
        return self.session.run({op: self.made.full_tensors.get(tensor, tensor) for op, tensor in tensors.items()})

    def at(self, folder, chunk_bytes=CHUNK_BYTES):
        """The same job with another folder."""
        self.storage = Storage(str(FOLDER / folder), self.storage.variables, self.storage.comm, chunk_bytes)
        self.beside.storage = self.storage
        return self

    def is_spread(self, op):
        return any(h.stored.op == op and isinstance(h, ShardedRows) for h in self.storage.variables)


def one_process(use_resource, restore="", save=""):
    """The user's graph without this project: all values after Saver has restored or before it has saved."""
    graph, saver = graph_of_one_process(use_resource)
    with v1.Session(graph=graph, config=as_written()) as session:
        if restore:
            saver.restore(session, restore)
        else:
            session.run([v.initializer for v in graph.get_collection("variables")])
        if save:
            saver.save(session, save, write_meta_graph=False)
        return session.run({v.op.name: v for v in graph.get_collection("variables")})


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def on_rank_0(function):
    """What a function gives on rank 0, on all; only there are the files."""
    found = function() if RANK == 0 else None
    barrier(COMM)
    return COMM.bcast(found)


def prefix_of(folder, step):
    return str(FOLDER / folder / f"model.ckpt-{step}")


def refused(function):
    """The message of a CheckpointError that all ranks must get alike."""
    try:
        function()
    except CheckpointError as error:
        message = str(error)
    else:
        message = "nothing was refused"
    everyone = COMM.allgather(message)
    assert everyone == [everyone[0]] * len(everyone), everyone
    return message


def shape_and_type_by_key(prefix):
    reader = tf.train.load_checkpoint(prefix)
    types = {k: t.name for k, t in reader.get_variable_to_dtype_map().items()}
    return {k: (shape, types[k]) for k, shape in reader.get_variable_to_shape_map().items()}


def three_workers_write_what_saver_writes(use_resource, pattern=()):
    folder = f"three-{use_resource}"
    with Job(analysed_graph(use_resource), "alltoall", folder=FOLDER / folder, pattern=pattern) as job:
        spread = ["emb", "emb/Adam", "emb/Adam_1", "parted/part_0", "parted/part_2/Adam", "double", "tiny", "bias"]
        assert not (missing := [op for op in spread if not job.is_spread(op)]), missing
        assert not job.is_spread("w") and not job.is_spread("counts")
        job.train()
        moved, wanted = saved_in_both_ways(job, f"beside-{use_resource}")
    if RANK == 0:
        beside = one_process(use_resource, restore=prefix_of(f"beside-{use_resource}", STEPS))
        assert_equal(beside, wanted)
        assert moved.prefix == latest(str(FOLDER / folder)) == prefix_of(folder, STEPS)
        assert moved.writers == (0, 1, 2), moved
        assert tf.train.latest_checkpoint(str(FOLDER / folder)) == moved.prefix
        # The largest thing that was ever whole in one process: a chunk. The largest table has 176 bytes.
        assert moved.largest_bytes == CHUNK_BYTES, moved
        assert_equal(one_process(use_resource, restore=moved.prefix), wanted)
        plain = str(FOLDER / f"keys-{use_resource}" / "model")
        one_process(use_resource, save=plain)
        assert shape_and_type_by_key(moved.prefix) == shape_and_type_by_key(plain)
        reader = tf.train.load_checkpoint(moved.prefix)
        np.testing.assert_array_equal(reader.get_tensor("emb/Adam"), wanted["emb/Adam"])
        whole = np.concatenate([wanted[f"parted/part_{i}/Adam"] for i in range(3)])
        np.testing.assert_array_equal(reader.get_tensor("parted/Adam"), whole)
        names = sorted(p.name.split(".data")[0] for p in (FOLDER / folder).iterdir())
        assert set(names) == {"checkpoint", "model.ckpt-3", "model.ckpt-3.index"}, names


def saved_in_both_ways(job, folder):
    """What a checkpoint that training waited for came to, and its values; one of the same step is written beside.

    No row of that is read before the workers have trained on. It comes first: tables are brought up to date for it.
    """
    begin, trained = Writer.begin, threading.Event()

    def begins_later(writer):
        assert Path(writer.folder).name != folder or trained.wait(60)
        begin(writer)

    job.beside.storage = replace(job.storage, folder=str(FOLDER / folder))
    Writer.begin = begins_later
    try:
        assert job.beside.begin(job.session, STEPS) == ""
        assert job.beside.is_writing and job.beside.step == STEPS and has_one_image()
        moved, wanted = job.storage.save(job.session, STEPS), job.values()
        job.train(20)
        trained.set()
        job.beside.join()
    finally:
        Writer.begin = begin
    beside = job.beside.pop_result()
    assert not images() and job.beside.step is None and not job.beside.is_writing
    assert beside.prefix == prefix_of(folder, STEPS) and 0 < beside.waited_s < beside.seconds, beside
    then = job.values()
    changed = ["emb", "emb/Adam", "parted/part_0", "double", "w", "global_step", "beta1_power"]
    assert not (same := [op for op in changed if np.array_equal(then[op], wanted[op])]), same
    return moved, wanted


def another_number_of_workers_reads_it(use_resource, workers, route, pattern=()):
    """On some of the ranks: reads, and writes again what it has read."""
    folder, again = f"three-{use_resource}", f"again-{use_resource}-{workers}"
    part = COMM.Split(0 if workers > RANK else MPI.UNDEFINED, RANK)
    if workers > RANK:
        with Job(analysed_graph(use_resource), route, part, folder=FOLDER / folder, pattern=pattern) as job:
            assert job.is_spread("emb") == (route == "alltoall")
            moved = job.storage.load(job.session)
            assert moved.prefix == prefix_of(folder, STEPS)
            if RANK == 0:
                assert moved.largest_bytes == CHUNK_BYTES, moved
            Storage(str(FOLDER / again), job.storage.variables, part, 32).save(job.session, STEPS)
    barrier(COMM)
    if RANK == 0:
        first = one_process(use_resource, restore=prefix_of(folder, STEPS))
        assert_equal(one_process(use_resource, restore=prefix_of(again, STEPS)), first)


def a_checkpoint_of_saver_is_read(use_resource):
    folder = FOLDER / f"plain-{use_resource}"
    wanted = on_rank_0(lambda: one_process(use_resource, save=str(folder / "model.ckpt-0")))
    with Job(analysed_graph(use_resource), "alltoall", folder=folder) as job:
        moved = job.storage.load(job.session)
        assert RANK or moved.largest_bytes == CHUNK_BYTES, moved
        assert_equal(job.values(), wanted)


@functools.cache
def usual():
    """A job on all ranks for all checks that need nothing special of it."""
    return Job(analysed_graph(True), "alltoall", pattern=UNEQUAL)


@functools.cache
def alone():
    """A job of rank 0: what fails there in the middle would leave others waiting for the end of the job."""
    return Job(analysed_graph(True), "alltoall", MPI.COMM_SELF)


def training_goes_on_after_reading_as_it_would_have():
    job = usual().at("continued")
    job.train()
    job.storage.save(job.session, STEPS)
    job.train(2)
    straight = job.values()
    job.storage.load(job.session)
    job.train(2)
    for name, value in job.values().items():
        np.testing.assert_array_equal(value, straight[name], err_msg=name)


def one_chunk_is_enough_for_all():
    job = usual().at("large", 2**20)
    job.storage.save(job.session, 0)
    wanted = job.values()
    job.train(1)
    job.storage.load(job.session)
    assert_equal(job.values(), wanted)
    if RANK == 0:
        assert len(list((FOLDER / "large").glob("model.ckpt-0.data-*"))) == 1


def whoever_sees_the_folder_writes_its_share():
    """All ranks, all but one, and rank 0 alone: equal checkpoints, which a Saver of whole variables reads."""
    job = usual().at("shared")
    job.train(1)
    wanted = job.values()
    for number, (blind, writers) in enumerate((((), (0, 1, 2)), ((1,), (0, 2)), ((1, 2), (0,)))):
        name = f"shared-{number}"
        job.at("elsewhere" if RANK in blind else name)
        moved = job.storage.save(job.session, 1)
        assert moved.writers == writers, moved
        written = {s.file for s in Bundle(prefix_of(name, 1)).tensors["emb"].pieces}
        assert len(written) >= len(writers), written
        assert not (FOLDER / "elsewhere").exists()
        if RANK == 0:
            assert_equal(one_process(True, restore=prefix_of(name, 1)), wanted)
            assert not list((FOLDER / name).glob("*unfinished*"))
        barrier(COMM)


def a_full_disk_of_one_worker_takes_older_checkpoints_and_is_told_by_all():
    """Of rank 2 every write fails while a checkpoint is there which may go, and then every one."""
    folder, job = FOLDER / "full of one", usual().at("full of one")
    job.storage = replace(job.storage, retention=Retention(5))
    for step in (1, 2):
        job.storage.save(job.session, step)
    wanted, flush = job.values(), Writer._flush
    fails_always = False

    def fails(writer):
        if RANK == 2 and writer._waiting and (fails_always or (folder / "model.ckpt-1.index").exists()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        flush(writer)

    Writer._flush = fails
    try:
        moved = job.storage.save(job.session, 3)
        fails_always = True
        message = refused(lambda: job.storage.save(job.session, 4))
    finally:
        Writer._flush = flush
    assert "No space left on device (worker 2)" in message and "Cannot write the checkpoint of step 4 to" in message, (
        message
    )
    if RANK == 0:
        assert len(moved.notes) == 1 and "No space left on device (worker 2)" in moved.notes[0], moved
        assert moved.notes[0].endswith(f"Deleted to make room: {prefix_of('full of one', 1)}."), moved
        assert_equal(one_process(True, restore=prefix_of("full of one", 3)), wanted)
        assert latest(str(folder)) == prefix_of("full of one", 3) and not list(folder.glob("*unfinished*"))


def a_failure_while_writing_keeps_the_one_before():
    if RANK:
        return
    folder, job, flush = FOLDER / "crash", alone().at("crash"), Writer._flush
    job.storage.save(job.session, 1)
    wanted = one_process(True, restore=prefix_of("crash", 1))

    def dies(writer):
        if len(writer._parts) == 4:
            raise KeyboardInterrupt  # no error of files: nothing is tidied, as if the process had died
        flush(writer)

    Writer._flush = dies
    try:
        job.storage.save(job.session, 2)
        raise AssertionError("the save ended well")
    except KeyboardInterrupt:
        pass
    finally:
        Writer._flush = flush
    assert (folder / "model.ckpt-2.unfinished").exists()
    assert latest(str(folder)) == tf.train.latest_checkpoint(str(folder)) == prefix_of("crash", 1)
    assert_equal(one_process(True, restore=prefix_of("crash", 1)), wanted)
    assert job.storage.load(job.session).prefix == prefix_of("crash", 1)
    job.storage.save(job.session, 3)
    names = {p.name.split(".data")[0] for p in folder.iterdir()} - {"checkpoint"}
    assert names == {f"model.ckpt-{step}{end}" for step in (1, 3) for end in ("", ".index")}, names
    state = v1.train.get_checkpoint_state(str(folder))
    assert list(state.all_model_checkpoint_paths) == [prefix_of("crash", 1), prefix_of("crash", 3)]


def a_full_disk_is_told_in_words():
    """No file may grow beyond some bytes, which is what a write to a full disk meets."""
    if RANK:
        return
    folder, job = FOLDER / "full", alone().at("full")
    job.storage.save(job.session, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))
    try:
        job.storage.save(job.session, 2)
        message = ""
    except CheckpointError as error:
        message = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "Cannot write the checkpoint of step 2 to" in message and "File too large" in message, message
    assert latest(str(folder)) == prefix_of("full", 1)
    assert not list(folder.glob("*unfinished*"))


def a_full_disk_beside_training_is_told_by_the_loop():
    """As above; the thread must not write before, and the loop hears when it asks."""
    if RANK:
        return
    folder, job = FOLDER / "full beside", alone().at("full beside")
    job.storage.save(job.session, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40, before[1]))
    try:
        assert not job.beside.begin(job.session, 2)
        job.beside.join()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    try:
        job.beside.pop_result()
        message = ""
    except FilesFailed as error:
        message = str(error)
    assert "Cannot write the checkpoint of step 2 to" in message and "File too large" in message, message
    assert latest(str(folder)) == prefix_of("full beside", 1) and not list(folder.glob("*unfinished*"))
    assert job.beside.step is None and not images()


def images():
    """The processes that hold images of this one."""
    found = [word for task in Path("/proc/self/task").iterdir() for word in _text_of(task / "children").split()]
    return [child for child in found if _text_of(Path(f"/proc/{child}/comm")) == "parallax-image\n"]


def has_one_image(limit_s=30.0):
    """Whether one process holds an image of this one: it takes its name only when it runs."""
    end_s = time.monotonic() + limit_s
    while len(images()) != 1 and time.monotonic() < end_s:
        time.sleep(0.01)
    return len(images()) == 1


def _text_of(file):
    """A file of /proc; empty where its thread or process has ended meanwhile."""
    try:
        return file.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def an_image_that_is_lost_skips_one_checkpoint_of_all_workers():
    """Lost by one worker in the middle: killed, as when memory runs out, or stopped, which a limit finds out."""
    job, look = usual().at("lost"), _InProgress.poll
    for step, number, words in ((1, signal.SIGKILL, ": signal 9 killed it."), (2, signal.SIGSTOP, "no byte for 2 s.")):
        struck = []

        def strikes(one, number=number, struck=struck):
            look(one)
            if RANK == 2 and not struck:
                struck.append(os.kill(int(images()[0]), number))

        _InProgress.poll = strikes
        try:
            assert not job.beside.begin(job.session, step)
            job.beside.join()
        finally:
            _InProgress.poll = look
        message = refused(job.beside.pop_result)
        assert f"step {step} is skipped: worker 2 could not" in message and words in message, message
        assert not images() and job.beside.step is None
        assert RANK or (latest(str(FOLDER / "lost")) is None and not list((FOLDER / "lost").glob("*unfinished*")))
        barrier(COMM)
    wanted = job.values()
    assert not job.beside.begin(job.session, 3)
    job.beside.join()
    assert job.beside.pop_result().prefix == prefix_of("lost", 3)
    assert_equal(one_process(True, restore=prefix_of("lost", 3)), wanted)


def a_machine_that_cannot_copy_a_process_is_named_on_all_workers():
    job = usual().at("cannot")
    freeze = job.beside.freezer.freeze

    def cannot(*_):
        raise CannotFreeze("clone failed")

    job.beside.freezer = SimpleNamespace(freeze=cannot if RANK == 1 else freeze)
    refusal = job.beside.begin(job.session, 1)
    assert refusal == "on worker 1: clone failed" and not images() and job.beside.step is None, refusal


def what_does_not_fit_is_refused():
    with Job(analysed_graph(True, 12, True), "alltoall", folder=FOLDER / "three-True") as job:
        message = refused(lambda: job.storage.load(job.session))
    assert "emb is [12, 4] in the graph and [11, 4] in it" in message, message
    assert "added [2] is missing from it" in message, message
    assert prefix_of("three-True", STEPS) in message


def no_checkpoint_is_no_error():
    job = usual().at("nowhere")
    assert job.storage.load(job.session) is None
    assert RANK or not (FOLDER / "nowhere").exists()


def a_named_checkpoint_that_is_gone_is_refused():
    folder, job = FOLDER / "gone", usual().at("gone")
    on_rank_0(lambda: (folder.mkdir(), (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-9"\n')))
    assert "model.ckpt-9.index: cannot read the checkpoint file" in refused(lambda: job.storage.load(job.session))


def a_damaged_checkpoint_is_skipped_on_all_workers():
    """Damage in the last bytes of the data is met when rows have been sent already."""
    job = usual().at("damaged", 2**20)
    job.storage.save(job.session, 1)
    wanted = job.values()
    job.train(1)
    job.storage.save(job.session, 2)

    def damage():
        data = FOLDER / "damaged" / "model.ckpt-2.data-00000-of-00001"
        data.write_bytes(data.read_bytes()[:-1] + b"\xff")

    on_rank_0(damage)
    job.train(1)
    moved = job.storage.load(job.session)
    assert moved.prefix == prefix_of("damaged", 1), moved
    assert len(moved.notes) == 1 and "model.ckpt-2.data" in moved.notes[0], moved
    assert_equal(job.values(), wanted)
    on_rank_0(lambda: (FOLDER / "damaged" / "model.ckpt-1.index").write_bytes(b"none"))
    assert "cannot read the checkpoint file" in refused(lambda: job.storage.load(job.session))


def a_folder_that_cannot_be_written_is_refused():
    on_rank_0(lambda: (FOLDER / "file").write_text("in the way"))
    job = usual().at("file/below")
    message = refused(lambda: job.storage.save(job.session, 0))
    assert "Cannot write the checkpoint of step 0 to" in message and "CheckPointConfig.ckpt_dir" in message, message


def workers_at_different_steps_are_refused():
    job = usual().at("steps")
    message = refused(lambda: job.storage.save(job.session, 5 + (RANK == 2)))
    assert "worker 0 is at 5 and worker 2 at 6" in message, message
    assert refused(lambda: job.beside.begin(job.session, 5 + (RANK == 2))) == message and not images()


CHECKS = {
    "three_workers_write_what_saver_writes, during training too, resource": lambda: (
        three_workers_write_what_saver_writes(True)
    ),
    "three_workers_write_what_saver_writes, during training too, reference": lambda: (
        three_workers_write_what_saver_writes(False, UNEQUAL)
    ),
    "a_checkpoint_of_saver_is_read": lambda: a_checkpoint_of_saver_is_read(True),
    "2 workers read it by allgather": lambda: another_number_of_workers_reads_it(True, 2, "allgather"),
    "2 workers read it by alltoall, reference": lambda: another_number_of_workers_reads_it(
        False, 2, "alltoall", OTHERS
    ),
    **{
        check.__name__: check
        for check in (
            training_goes_on_after_reading_as_it_would_have,
            one_chunk_is_enough_for_all,
            whoever_sees_the_folder_writes_its_share,
            a_full_disk_of_one_worker_takes_older_checkpoints_and_is_told_by_all,
            a_failure_while_writing_keeps_the_one_before,
            what_does_not_fit_is_refused,
            no_checkpoint_is_no_error,
            a_named_checkpoint_that_is_gone_is_refused,
            a_damaged_checkpoint_is_skipped_on_all_workers,
            a_folder_that_cannot_be_written_is_refused,
            a_full_disk_is_told_in_words,
            a_full_disk_beside_training_is_told_by_the_loop,
            an_image_that_is_lost_skips_one_checkpoint_of_all_workers,
            a_machine_that_cannot_copy_a_process_is_named_on_all_workers,
            workers_at_different_steps_are_refused,
        )
    },
}


def main():
    faulthandler.dump_traceback_later(400, exit=True)  # where each rank hangs, if one does
    hvd.init()
    done = []
    for name, check in CHECKS.items():
        began_s = time.monotonic()
        try:
            check()
        except Exception:
            # A rank that fails alone would leave the others waiting: the job ends here.
            print(f"{name}: {traceback.format_exc()}", flush=True)
            os._exit(1)
        barrier(COMM)
        if RANK == 0:
            print(f"{name}: {time.monotonic() - began_s:.1f} s", flush=True)
        done.append(name)
    if RANK == 0:
        Path(sys.argv[1]).write_text(json.dumps(done))


if __name__ == "__main__":
    main()
