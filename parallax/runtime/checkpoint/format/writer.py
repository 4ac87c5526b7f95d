"""Writes one checkpoint's files atomically: it is complete or absent, whenever a process or machine dies.

A checkpoint is written in parts, in its own temporary folder next to the others, by one process or by several that see
that folder. Each process forces its own parts to disk. When all parts exist, one process merges them and renames them,
the index last; only then does the file `checkpoint` name the new checkpoint. Parts left by a process that died are
deleted before the next checkpoint is written. If that process still runs, on a host that was given up, it writes into a
folder of another name.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import tensorflow as tf

from parallax.base.types import FeedDict, Fetches, Value
from parallax.runtime.checkpoint.format.folder import (
    INCREMENT,
    NAME,
    UNFINISHED,
    Retention,
    delete,
    fsync_path,
    is_full,
    mark_latest,
    reason,
)
from parallax.runtime.checkpoint.format.folder_owner import FolderClaim
from parallax.runtime.checkpoint.format.folder_watch import FolderWatch


def run(fetch: Fetches, feeds: FeedDict | None = None) -> Value:
    """Runs an op of the default graph in its own session, without GPUs."""
    options = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    options.graph_options.rewrite_options.disable_meta_optimizer = True  # a single op: nothing to optimize
    with tf.compat.v1.Session(config=options) as session:
        return session.run(fetch, feeds)


@dataclass
class Writer:
    """A checkpoint that is being written, one process's part in it.

    Attributes:
        folder: its folder (absolute).
        step: its global step.
        chunk_bytes: pieces are collected in a file up to this size.
        retention: which older checkpoints remain after this one.
        name: its own in the folder; empty for that of a checkpoint of its step.
        worker: number of this process. Worker 0 begins and finishes; the others `register`.
        parts_name: of the folder for parts, in that of the unfinished checkpoint; drawn at random by `begin`.
        largest_bytes: the maximum in memory at once so far.
        notes: checkpoints that were deleted to make room, a sentence each.
        claim: on the folder, which `begin` acquires or verifies; None where no other process writes there.
        watch: detects that the folder does not respond; None where this is not reported.
    """

    folder: str
    step: int
    chunk_bytes: int
    retention: Retention = Retention()
    name: str = ""
    worker: int = 0
    parts_name: str = ""
    largest_bytes: int = 0
    notes: list[str] = field(default_factory=list)
    claim: FolderClaim | None = None
    watch: FolderWatch | None = None
    _waiting: list[tuple[str, str, str, Value]] = field(default_factory=list)
    _waiting_bytes: int = 0
    _parts: list[str] = field(default_factory=list)
    _settled: int = 0

    @property
    def prefix(self) -> str:
        """The name of the finished checkpoint."""
        return posixpath.join(self.folder, self.name or f"{NAME}-{self.step}")

    @property
    def _temporary(self) -> str:
        return self.prefix + UNFINISHED

    def _part(self, name: str) -> str:
        return posixpath.join(self._temporary, self.parts_name, name)

    def watch_folder(self) -> AbstractContextManager[None]:
        """Context in which operations in the folder are watched."""
        return (
            nullcontext() if self.watch is None else self.watch.doing(f"The checkpoint of step {self.step} is overdue")
        )

    def begin(self) -> None:
        """Creates the folder, and deletes files that a dead process left in it.

        Raises:
            FolderInUse: the folder belongs to another job.
        """
        if self.claim is not None:
            self.claim.acquire()
        tf.io.gfile.makedirs(self.folder)
        for left in tf.io.gfile.glob([posixpath.join(self.folder, f"{n}-*{UNFINISHED}") for n in (NAME, INCREMENT)]):
            tf.io.gfile.rmtree(left)
        self.parts_name = uuid.uuid4().hex
        tf.io.gfile.makedirs(self._part(""))

    def register(self, parts_name: str) -> bool:
        """Returns whether this process sees worker 0's folder and may write there; leaves a marker file in it."""
        self.parts_name = parts_name
        try:
            if not tf.io.gfile.isdir(self._part("")):
                return False
            with tf.io.gfile.GFile(self._sign(self.worker), "w") as file:
                file.write("here\n")
        except (tf.errors.OpError, OSError):  # for example, the folder is read-only: rows go to workers that can write
            return False
        return True

    def has_registered(self, worker: int) -> bool:
        """Whether the marker file of another process is in this process's folder."""
        return bool(tf.io.gfile.exists(self._sign(worker)))

    def _sign(self, worker: int) -> str:
        return self._part(f"worker-{worker}")

    def add(self, key: str, slice_spec: str, dtype: str, value: Value) -> None:
        """Adds a tensor or a slice of one."""
        size = int(getattr(value, "nbytes", 0))
        if self._waiting_bytes + size > self.chunk_bytes:
            self._flush()
        self._waiting.append((key, slice_spec, dtype, value))
        self._waiting_bytes += size
        self.largest_bytes = max(self.largest_bytes, self._waiting_bytes)

    def close(self) -> tuple[str, ...]:
        """Writes all added tensors, and forces them to disk; returns the names of this process's parts."""
        self._flush()
        for name in self._parts[self._settled :]:
            for path in tf.io.gfile.glob(f"{self._part(name)}.*"):
                fsync_path(path)
            self._settled += 1
        return tuple(self._parts)

    def finish(self, others: Sequence[str] = ()) -> str:
        """Merges the parts into a checkpoint, the latest, and deletes expired ones; returns its prefix.

        Args:
            others: parts of other processes, which have closed them.
        """
        self.finish_files(others)
        mark_latest(self.prefix)
        self.retention.apply(self.folder)
        return self.prefix

    def finish_files(self, others: Sequence[str] = ()) -> None:
        """Merges the parts into a checkpoint that the file `checkpoint` does not name; `others` as in `finish`."""
        parts = [self._part(name) for name in (*self.close(), *others)]
        merged = posixpath.join(self._temporary, posixpath.basename(self.prefix))
        with tf.Graph().as_default():
            run(tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=merged))
        index = f"{merged}.index"
        fsync_path(index)
        if self.claim is not None:
            self.claim.acquire()
        delete(self.prefix)  # an older one of this step: it may have more files than the new one
        for path in [*sorted(tf.io.gfile.glob(f"{merged}.data-*")), index]:
            tf.io.gfile.rename(path, posixpath.join(self.folder, posixpath.basename(path)), overwrite=True)
        fsync_path(self.folder)
        self.discard()

    def discard(self) -> None:
        """Deletes the unfinished files of this checkpoint, once it has begun."""
        if self.parts_name and tf.io.gfile.exists(self._temporary):
            tf.io.gfile.rmtree(self._temporary)

    def _flush(self) -> None:
        """Writes pending tensors into their own file; after an error they are still pending."""
        if not self._waiting:
            return
        name = f"{self.worker:05d}-{len(self._parts):05d}"
        part = self._part(name)
        keys, specs, dtypes, values = zip(*self._waiting, strict=True)
        with tf.Graph().as_default():
            tensors = [
                tf.compat.v1.placeholder(tf.as_dtype(d), getattr(v, "shape", ()))
                for d, v in zip(dtypes, values, strict=True)
            ]
            write = tf.raw_ops.SaveV2(
                prefix=part, tensor_names=list(keys), shape_and_slices=list(specs), tensors=tensors
            )
            fed = dict(zip(tensors, values, strict=True))
            try:
                run(write, fed)
            except (tf.errors.OpError, OSError) as error:
                for left in tf.io.gfile.glob(f"{part}.*"):
                    tf.io.gfile.remove(left)
                if self.worker or not self.make_room(error):
                    raise
                run(write, fed)
        self._parts.append(name)
        self._waiting, self._waiting_bytes = [], 0

    def make_room(self, error: Exception) -> bool:
        """After an error on a full disk, deletes older checkpoints as far as permitted, but never the latest.

        Returns:
            Whether any were deleted: not if the disk is not full or none may be deleted.
        """
        deleted = self.retention.apply(self.folder, last=1) if is_full(error) else []
        if deleted:
            self.notes.append(
                f"{self.folder} has no space left for the checkpoint of step {self.step}: {reason(error)}. "
                f"Deleted to make room: {', '.join(deleted)}."
            )
        return bool(deleted)
