"""The files of checkpoints: which is the latest, and how a new one comes to be whole or not at all.

A checkpoint is written in parts, in a folder of its own beside the others. When all parts are there they are merged,
moved to their names, the index last, and only then does the file `checkpoint` name the new one. A process that dies
before that leaves the previous checkpoint the latest, and what it left is deleted before the next is written.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from parallax.errors import CheckpointError

NAME = "model.ckpt"
_UNFINISHED = ".unfinished"


@contextmanager
def file_errors(rule: str, remedy: str) -> Iterator[None]:
    """Says what failed in files in the words of this project.

    Raises:
        CheckpointError: from TensorFlow's and Python's errors about files.
    """
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        reason = error.message if isinstance(error, tf.errors.OpError) else str(error)
        raise CheckpointError(f"{rule}, and failed: {_said(str(reason))}. {remedy}") from error


def _said(message: str) -> str:
    """What an error of TensorFlow says, without where the op was built."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    node = next((number for number, line in enumerate(lines) if line.startswith("[[{{node")), 1)
    return lines[node - 1] if lines else "no reason given"


def absolute(folder: str) -> str:
    """The folder as an absolute path, so that the names in its file `checkpoint` are relative to it."""
    return folder if "://" in folder else str(Path(folder).absolute())


def latest(folder: str) -> str | None:
    """The prefix of the latest checkpoint; None when there is none.

    Raises:
        CheckpointError: when the file `checkpoint` names one that is not there.
    """
    state = tf.compat.v1.train.get_checkpoint_state(folder)
    if state is None or not state.model_checkpoint_path:
        return None
    prefix = str(state.model_checkpoint_path)
    if not tf.io.gfile.exists(f"{prefix}.index"):
        raise CheckpointError(
            f"The file `checkpoint` in {folder} must name a checkpoint that is there, and {prefix}.index is not. Put "
            "it back, name another one in that file, or delete the file to start anew."
        )
    return prefix


def run(fetch: Any, feeds: Any = None) -> Any:
    """Runs an op of the default graph in a session of its own, without GPUs."""
    options = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
    options.graph_options.rewrite_options.disable_meta_optimizer = True  # one op: nothing to optimize
    with tf.compat.v1.Session(config=options) as session:
        return session.run(fetch, feeds)


@dataclass
class Writer:
    """One checkpoint that is being written, by one process.

    Attributes:
        folder: where it goes (absolute).
        step: its global step.
        chunk_bytes: pieces are put together in a file up to this size.
        largest_bytes: the most that was held at once so far.
    """

    folder: str
    step: int
    chunk_bytes: int
    largest_bytes: int = 0
    _waiting: list[tuple[str, str, str, Any]] = field(default_factory=list)
    _waiting_bytes: int = 0
    _parts: list[str] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """The checkpoint's name when it is done."""
        return posixpath.join(self.folder, f"{NAME}-{self.step}")

    @property
    def _temporary(self) -> str:
        return self.prefix + _UNFINISHED

    def begin(self) -> None:
        """Makes the folder, and deletes what a process that died left in it."""
        tf.io.gfile.makedirs(self.folder)
        for left in tf.io.gfile.glob(posixpath.join(self.folder, f"{NAME}-*{_UNFINISHED}")):
            tf.io.gfile.rmtree(left)
        tf.io.gfile.makedirs(posixpath.join(self._temporary, "parts"))

    def add(self, key: str, slice_spec: str, dtype: str, value: Any) -> None:
        """Adds a tensor or a slice of one."""
        size = int(getattr(value, "nbytes", 0))
        if self._waiting_bytes + size > self.chunk_bytes:
            self._flush()
        self._waiting.append((key, slice_spec, dtype, value))
        self._waiting_bytes += size
        self.largest_bytes = max(self.largest_bytes, self._waiting_bytes)

    def finish(self) -> str:
        """Makes of the parts a checkpoint, the latest; gives its prefix."""
        self._flush()
        merged = posixpath.join(self._temporary, posixpath.basename(self.prefix))
        with tf.Graph().as_default():
            run(tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=self._parts, destination_prefix=merged))
        self._remove_same_name()
        index = f"{merged}.index"
        for path in [*sorted(tf.io.gfile.glob(f"{merged}.data-*")), index]:
            tf.io.gfile.rename(path, posixpath.join(self.folder, posixpath.basename(path)), overwrite=True)
        self.discard()
        self._become_latest()
        return self.prefix

    def discard(self) -> None:
        """Deletes what is unfinished."""
        if tf.io.gfile.exists(self._temporary):
            tf.io.gfile.rmtree(self._temporary)

    def _flush(self) -> None:
        """Writes what waits into a file of its own."""
        if not self._waiting:
            return
        part = posixpath.join(self._temporary, "parts", f"{len(self._parts):05d}")
        keys, specs, dtypes, values = zip(*self._waiting, strict=True)
        with tf.Graph().as_default():
            tensors = [
                tf.compat.v1.placeholder(tf.as_dtype(d), getattr(v, "shape", ()))
                for d, v in zip(dtypes, values, strict=True)
            ]
            write = tf.raw_ops.SaveV2(
                prefix=part, tensor_names=list(keys), shape_and_slices=list(specs), tensors=tensors
            )
            run(write, dict(zip(tensors, values, strict=True)))
        self._parts.append(part)
        self._waiting, self._waiting_bytes = [], 0

    def _remove_same_name(self) -> None:
        """An older checkpoint of this step goes, its index first: it may have more files than the new one."""
        for pattern in (f"{self.prefix}.index", f"{self.prefix}.data-*", f"{self.prefix}.meta"):
            for path in tf.io.gfile.glob(pattern):
                tf.io.gfile.remove(path)

    def _become_latest(self) -> None:
        """Names it in the file `checkpoint`, after those that are named there already."""
        state = tf.compat.v1.train.get_checkpoint_state(self.folder)
        before = [] if state is None else [posixpath.relpath(p, self.folder) for p in state.all_model_checkpoint_paths]
        name = posixpath.basename(self.prefix)
        new = tf.compat.v1.train.generate_checkpoint_state_proto(
            self.folder, name, [*(p for p in before if p != name), name]
        )
        path = posixpath.join(self.folder, "checkpoint")
        with tf.io.gfile.GFile(path + _UNFINISHED, "w") as file:
            file.write(str(new))
        tf.io.gfile.rename(path + _UNFINISHED, path, overwrite=True)
