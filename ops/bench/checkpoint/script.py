"""The job that `python -m ops.bench checkpoint` runs: trains a table with Zipf ids, and saves it in each way.

`script.py ROWS WIDTH FOLDER ROUNDS`: in each round training stops for two checkpoints, in alternating order: one that
worker 0 writes to a folder that the others do not see, and one that all workers write. Then a third checkpoint of the
same step is frozen, and the workers train until it is written. Worker 0 compares all three byte by byte.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow.compat.v1 as tf

import parallax
from ops.bench.checkpoint.command import LINE
from parallax.runtime.checkpoint.checkpoints import Checkpoints
from parallax.runtime.checkpoint.concurrent_checkpoints import ConcurrentCheckpoints
from parallax.runtime.checkpoint.format.bundle import Bundle
from parallax.runtime.checkpoint.format.stored_tensors import chunks
from parallax.runtime.checkpoint.hook import CheckpointHook

BATCH, IDS, HIDDEN, WARM, BEFORE = 128, 10, 64, 10, 40
_LOOK_S = 0.1
_CHUNK_BYTES = 64 * 2**20
_COMPARE_S = 3600.0  # while worker 0 compares, the others wait in a step, which must not be reported as a stall


@dataclass
class Memory:
    """Samples the memory (PSS) of this process and its forked image together: shared pages count once."""

    peak_bytes: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Starts the sampling thread."""
        threading.Thread(target=self._watch, daemon=True).start()

    def peak(self) -> int:
        """Returns the peak since the last call."""
        with self._lock:
            peak, self.peak_bytes = self.peak_bytes, 0
        return peak

    def _watch(self) -> None:
        while True:
            own = psutil.Process()
            held = sum(map(_pss, [own, *own.children()]))
            with self._lock:
                self.peak_bytes = max(self.peak_bytes, held)
            time.sleep(_LOOK_S)


def build(rows: int, width: int) -> Any:
    """Returns a graph of a table and two dense layers; table and slot take 8 · rows · width bytes together."""
    graph = tf.Graph()
    with graph.as_default():
        ids = tf.placeholder(tf.int64, [BATCH, IDS], name="ids")
        table = tf.get_variable("table", [rows, width], initializer=tf.random_normal_initializer(0, 0.1))
        w = tf.get_variable("w", [IDS * width, HIDDEN])
        out = tf.get_variable("out", [HIDDEN, 1])
        score = tf.nn.relu(tf.reshape(tf.nn.embedding_lookup(table, ids), [BATCH, IDS * width]) @ w) @ out
        step = tf.train.get_or_create_global_step()
        tf.train.AdagradOptimizer(0.01).minimize(tf.reduce_mean(tf.square(score - 1.0)), step, name="train")
    return graph


@dataclass
class Loop:
    """The training loop of one worker."""

    session: Any
    draw: Any
    rows: int

    def step(self) -> float:
        """Trains on one batch, and returns the step time in seconds."""
        ids = self.draw.zipf(1.2, [BATCH, IDS]) % self.rows
        began_s = time.monotonic()
        self.session.run("train", {"ids:0": [ids]})
        return time.monotonic() - began_s


def main() -> None:
    """Trains and saves, and prints the figures of each round."""
    rows, width, folder, rounds = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    wanted = parallax.CheckPointConfig(ckpt_dir=folder / "beside", save_ckpt_steps=2**31, keep_last=1)
    config = parallax.Config(seed=1, ckpt_config=wanted, routes={"table": "alltoall"}, stall_timeout_s=_COMPARE_S)
    sess, _, rank, _ = parallax.parallel_run(build(rows, width), parallax_config=config)
    saved: Checkpoints = next(h for h in sess._monitored._hooks if isinstance(h, CheckpointHook)).checkpoints
    loop, memory = Loop(sess, np.random.default_rng(rank), rows), Memory()
    memory.start()
    with sess:
        for _ in range(WARM):
            loop.step()
        for number in range(rounds):
            measured = one_round(loop, saved, sess._worker.raw, memory, folder, BEFORE + number)
            if rank == 0:
                measured["equal"] = all([equal(folder / name, folder / "beside") for name in ("alone", "stood")])
            print(f"{LINE}{json.dumps({'rank': rank, **measured})}", flush=True)


def one_round(
    loop: Loop, saved: Checkpoints, raw: Any, memory: Memory, folder: Path, before: int
) -> dict[str, float | bool]:
    """Saves one step in each way, and returns the figures."""
    assert saved.concurrent is not None
    beside = ConcurrentCheckpoints(
        saved.storage, saved.concurrent.comm, saved.concurrent.freezer
    )  # not the hook's object, whose result the hook takes
    memory.peak()
    usual = [loop.step() for _ in range(before)]
    share_bytes = memory.peak()
    step = int(raw.run(saved.step))
    names = ("alone", "stood") if before % 2 else ("stood", "alone")
    standing = {name: save_blocking(saved, raw, memory, folder, name, step) for name in names}
    (alone_s, alone_bytes, _), (stood_s, stood_bytes, moved_bytes) = standing["alone"], standing["stood"]
    began_s = time.monotonic()
    if refusal := beside.begin(raw, step):
        sys.exit(f"Nothing was written during training: {refusal}")
    waited_s = time.monotonic() - began_s
    meanwhile = []
    while loop.session.workers.allreduce(int(beside.is_writing)):  # all workers train while any of them writes
        meanwhile.append(loop.step())
    copied_bytes = beside.pop_result().copied_bytes
    return {
        "bytes": moved_bytes,
        "share": share_bytes,
        "alone_s": alone_s,
        "alone_above": alone_bytes - share_bytes,
        "stood_s": stood_s,
        "stood_above": stood_bytes - share_bytes,
        "waited_s": waited_s,
        "written_s": time.monotonic() - began_s,
        "above": memory.peak() - share_bytes,
        "copied": copied_bytes,
        "steps": len(meanwhile),
        "step_s": float(np.median(usual)),
        "step_meanwhile_s": float(np.median(meanwhile)),
    }


def save_blocking(
    saved: Checkpoints, raw: Any, memory: Memory, folder: Path, name: str, step: int
) -> tuple[float, int, int]:
    """Saves with training stopped, `alone` by worker 0; returns seconds, peak memory and the checkpoint's bytes."""
    comm = saved.storage.comm
    is_blind = name == "alone" and comm.Get_rank() > 0
    began_s = time.monotonic()
    moved = replace(saved.storage, folder=str(folder / ("unseen" if is_blind else name))).save(raw, step)
    assert moved.writers == ((0,) if name == "alone" else tuple(range(comm.Get_size()))), moved
    return time.monotonic() - began_s, memory.peak(), moved.moved_bytes


def equal(one: Path, other: Path) -> bool:
    """Returns whether the latest checkpoints of two folders are equal, bit by bit; deletes the first folder."""
    first, second = (Bundle(tf.train.latest_checkpoint(str(folder))) for folder in (one, other))
    same = first.tensors.keys() == second.tensors.keys()
    for key, tensor in first.tensors.items():
        row_bytes = sum(piece.size for piece in tensor.pieces) // max(1, tensor.shape[0] if tensor.shape else 1)
        for begin, count in chunks(tensor.shape[0] if tensor.shape else 1, row_bytes, _CHUNK_BYTES) if same else ():
            box = ((begin, *[0] * (len(tensor.shape) - 1)), (count, *tensor.shape[1:])) if tensor.shape else ((), ())
            same &= first.read(key, *box).tobytes() == second.read(key, *box).tobytes()
    shutil.rmtree(one)
    return same


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:  # the process has just ended
        return 0


if __name__ == "__main__":
    main()
