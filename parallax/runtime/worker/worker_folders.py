"""Redirects files of hooks and summaries to a folder per worker, where all workers would write the same files.

Every worker runs the script, so hooks and summary writers name the same folder on all. Two workers of a host then write
one events file, and overwrite each other's timelines or checkpoints. Worker 0 writes where the script says, and worker
R in the subfolder `worker-R`:

- Folders of hooks are compared when the session is opened: a folder that the script names per worker stays unchanged.
- A summary writer that is made before `parallel_run` cannot know its worker.
- One that is made later keeps a folder whose last name contains the worker's number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from parallax.base.types import Comm, Hook

_FOLDERS = ("_output_dir", "_checkpoint_dir")
_FILES = ("_save_path", "_output_file")
"""Attributes in which TensorFlow's hooks store the folders and files that they write to."""
_EAGER_WRITER = "create_summary_file_writer"
_IN_MEMORY = "ram://parallax-discarded"
"""A folder of TensorFlow's in-process file system, of which nothing is left however the process ends."""


class WorkerFolders:
    """The folders of one worker.

    Args:
        rank: this worker's.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._knows_rank = self._stays = False
        self._discards = False

    def install(self) -> None:
        """Redirects summary writers of this process to the worker's own folders from now on. Imports TensorFlow."""
        from tensorflow.python.ops import gen_summary_ops
        from tensorflow.python.summary.writer.event_file_writer import EventFileWriter

        if not self._rank:
            return
        original = EventFileWriter.__init__

        @wraps(original)
        def of_worker(
            writer: Any, logdir: Any, max_queue: int = 10, flush_secs: int = 120, filename_suffix: str | None = None
        ) -> None:
            folder = self.folder(str(logdir))
            if self._knows_rank and folder == str(logdir):  # never the file of another worker of this host
                filename_suffix = f"{filename_suffix or ''}.{self._name}"
            original(writer, folder, max_queue, flush_secs, filename_suffix)

        EventFileWriter.__init__ = of_worker
        setattr(gen_summary_ops, _EAGER_WRITER, self._eager(getattr(gen_summary_ops, _EAGER_WRITER)))

    def folder(self, named: str) -> str:
        """The folder into which this worker writes summaries for which the script names a folder."""
        if self._discards:
            return _IN_MEMORY
        if not self._rank or self._stays or (self._knows_rank and self._has_rank(named)):
            return named
        return f"{named.rstrip('/')}/{self._name}"

    def note_rank(self, _: int) -> None:
        """Records that the script has learnt its rank."""
        self._knows_rank, self._stays = True, False

    def redirect_hooks(self, hooks: Sequence[Hook], workers: Comm) -> None:
        """Redirects hooks to the worker's own folders, before they begin; every worker must call it.

        Writers that are made from here on, until the script knows its rank, are those of hooks and of Parallax.

        Args:
            hooks: of the script, the same on all workers.
            workers: communicator of the workers.
        """
        self._stays = True
        places = [(hook, name) for hook in hooks for name in (*_FOLDERS, *_FILES) if _text(hook, name)]
        by_worker: list[list[str]] = workers.allgather([_text(hook, name) for hook, name in places])
        for number, (hook, name) in enumerate(places):
            lower = [of_worker[number] for of_worker in by_worker[: self._rank] if number < len(of_worker)]
            if _text(hook, name) in lower:
                self._redirect(hook, name)

    @contextmanager
    def discard_opening_writes(self) -> Iterator[None]:
        """Context in which hooks of worker 0 alone begin: other workers' writers discard what they write on opening."""
        self._discards = self._rank > 0
        try:
            yield
        finally:
            self._discards = False

    @property
    def _name(self) -> str:
        return f"worker-{self._rank}"

    def _redirect(self, hook: Hook, name: str) -> None:
        import tensorflow as tf

        folder, file = (_text(hook, name), "") if name in _FOLDERS else _text(hook, name).rpartition("/")[::2]
        rank_folder = f"{folder.rstrip('/') or '.'}/{self._name}"
        tf.io.gfile.makedirs(rank_folder)
        setattr(hook, name, f"{rank_folder}/{file}" if file else rank_folder)

    def _has_rank(self, named: str) -> bool:
        return re.search(rf"(?<!\d){self._rank}(?!\d)", named.rstrip("/").rpartition("/")[2]) is not None

    def _eager(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps TensorFlow's op that opens a writer; in a graph its folder is the launcher's."""

        @wraps(original)
        def open_writer(*args: Any, **kwargs: Any) -> Any:
            logdir: Any = kwargs.get("logdir")
            if hasattr(logdir, "numpy"):
                import tensorflow as tf

                kwargs["logdir"] = tf.constant(self.folder(logdir.numpy().decode()))
            return original(*args, **kwargs)

        return open_writer


def _text(hook: Hook, name: str) -> str:
    """A path attribute of a hook; empty if it has none."""
    value = getattr(hook, name, None)
    return str(value) if isinstance(value, (str, Path)) else ""
