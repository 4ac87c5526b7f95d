"""Lists the checkpoints in a folder, orders them for loading, and selects the ones that may be deleted.

The file `checkpoint` names them as TensorFlow does: the latest, and all in the order of their writing. If it is
damaged, the checkpoints are listed from the files themselves.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.strict import shown

NAME, INCREMENT = "model.ckpt", "increment"
UNFINISHED = ".unfinished"
_FULL = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
_HOUR_S = 3600.0


class NotWritten(CheckpointError):
    """One checkpoint was not written, as all workers know. Earlier ones are untouched, and the next may be written."""


class FilesFailed(NotWritten):
    """Files could not be read or written."""


@contextmanager
def file_errors(what: str, remedy: str) -> Iterator[None]:
    """Context that describes file errors in the project's terms.

    Raises:
        FilesFailed: from TensorFlow's and Python's errors about files.
    """
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        raise FilesFailed(f"{what}: {shown(reason(error))}. {remedy}") from error


def reason(error: Exception) -> str:
    """The text of a file error, without the traceback of TensorFlow's op."""
    message = str(error.message if isinstance(error, tf.errors.OpError) else error)
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    node = next((number for number, line in enumerate(lines) if line.startswith("[[{{node")), 1)
    return lines[node - 1] if lines else "no reason given"


def is_full(error: Exception) -> bool:
    """Whether a file error is caused by a full disk."""
    return any(words in reason(error) for words in _FULL)


def absolute(folder: str) -> str:
    """The folder as an absolute path, so that the names in its file `checkpoint` are relative to it."""
    return folder if "://" in folder else str(Path(folder).absolute())


def candidates(folder: str) -> list[str]:
    """The prefixes of the checkpoints to try, in order: the latest, and then earlier ones.

    Empty if there is no file `checkpoint`: it may be deleted to start from scratch. If that file is damaged or names
    none, all existing ones, the highest step first.
    """
    latest, named = _state(folder)
    before = named[: named.index(latest)] if latest in named else named
    first = [latest] if latest else []
    return [*first, *(prefix for prefix in reversed(before) if tf.io.gfile.exists(f"{prefix}.index"))]


def list_prefixes(folder: str) -> list[str]:
    """The prefixes of all checkpoints in a folder, named in the file `checkpoint` or not."""
    return sorted({*_find_prefixes(folder), *_state(folder)[1]}, key=lambda prefix: (len(prefix), prefix))


def latest(folder: str) -> str | None:
    """The prefix of the checkpoint to load first; None when there is none."""
    return next(iter(candidates(folder)), None)


def mark_latest(prefix: str) -> None:
    """Appends a checkpoint to those that the file `checkpoint` of its folder names, as the latest."""
    folder = posixpath.dirname(prefix)
    _write_state(folder, [*(p for p in _state(folder)[1] if p != prefix), prefix])


def delete(prefix: str) -> None:
    """Deletes a checkpoint's files, its index first: without an index it is no checkpoint."""
    for pattern in (f"{prefix}.index", f"{prefix}.data-*", f"{prefix}.meta"):
        for path in tf.io.gfile.glob(pattern):
            tf.io.gfile.remove(path)


def fsync_path(path: str) -> None:
    """Forces a file, or a folder's entries, to disk; does nothing on file systems other than this machine's."""
    if "://" in path:
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention policy of checkpoints.

    Attributes:
        last: the number of latest ones to keep; None for all.
        every_hours: of earlier ones, keep the first, and each that was written so many hours after the previous kept
            one; None to keep none of them.
    """

    last: int | None = None
    every_hours: float | None = None

    def find_expired(self, written_s: Sequence[float], last: int | None = None) -> list[int]:
        """The indices of those that may be deleted.

        Args:
            written_s: when each was written, in that order.
            last: replaces the attribute `last`.
        """
        if self.last is None:
            return []
        expired, stayed_s = [], -float("inf")
        for place, when_s in enumerate(written_s[: max(0, len(written_s) - (last or self.last))]):
            if self.every_hours is not None and when_s - stayed_s >= self.every_hours * _HOUR_S:
                stayed_s = when_s
            else:
                expired.append(place)
        return expired

    def apply(self, folder: str, last: int | None = None) -> list[str]:
        """Deletes expired checkpoints of those that the file `checkpoint` names; returns the deleted ones."""
        pattern = re.compile(re.escape(posixpath.join(folder, NAME)) + r"-\d+")
        named = [prefix for prefix in _state(folder)[1] if tf.io.gfile.exists(f"{prefix}.index")]
        prefixes = [prefix for prefix in named if pattern.fullmatch(prefix)]
        times_s = [tf.io.gfile.stat(f"{prefix}.index").mtime_nsec / 1e9 for prefix in prefixes]
        deleted = [prefixes[place] for place in self.find_expired(times_s, last)]
        for prefix in deleted:
            delete(prefix)
        if deleted:
            _write_state(folder, [prefix for prefix in named if prefix not in deleted])
        return deleted


def _state(folder: str) -> tuple[str, list[str]]:
    """The latest, and all in the order of their writing, from the file `checkpoint`.

    If it is damaged, all existing ones, and none as the latest.
    """
    if not tf.io.gfile.exists(posixpath.join(folder, "checkpoint")):
        return "", []
    try:
        state = tf.compat.v1.train.get_checkpoint_state(folder)
    except ValueError:  # not text
        state = None
    if state is None or not state.model_checkpoint_path:
        return "", _find_prefixes(folder)
    return str(state.model_checkpoint_path), [str(prefix) for prefix in state.all_model_checkpoint_paths]


def _write_state(folder: str, prefixes: list[str]) -> None:
    """Writes checkpoints to the file `checkpoint`, the last of them as the latest."""
    names = [posixpath.relpath(prefix, folder) for prefix in prefixes]
    path = posixpath.join(folder, "checkpoint")
    with tf.io.gfile.GFile(path + UNFINISHED, "w") as file:
        file.write(str(tf.compat.v1.train.generate_checkpoint_state_proto(folder, names[-1], names)))
    fsync_path(path + UNFINISHED)
    tf.io.gfile.rename(path + UNFINISHED, path, overwrite=True)
    fsync_path(folder)


def _find_prefixes(folder: str) -> list[str]:
    """The prefixes of the checkpoints whose index is in a folder, by step."""
    names = (posixpath.basename(path) for path in tf.io.gfile.glob(posixpath.join(folder, f"{NAME}-*.index")))
    matches = (re.fullmatch(re.escape(NAME) + r"-(\d+)\.index", name) for name in names)
    return [posixpath.join(folder, f"{NAME}-{step}") for step in sorted(int(match[1]) for match in matches if match)]
