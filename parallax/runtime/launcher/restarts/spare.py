"""Runs a job in its own thread, and prepares a spare job: started in advance, it waits for its message.

The spare's processes have imported what the script will need, and wait. It is a job like any other, with supervisors, a
mark, and a parent whose death ends it. Its input arrives only when the job before it has failed, and until then its
output is not shown.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import BinaryIO, cast

from parallax.runtime.launcher.job import Job
from parallax.runtime.launcher.job_input import JobInput
from parallax.runtime.launcher.launch import Contact, JobEnd

Launch = Callable[..., JobEnd]


class RunningJob:
    """A job launched by its own thread.

    Args:
        launch: as `launch.launch`.
        job: the job to run.
        job_input: the pieces that rank 0 reads, for a job whose own input is empty: they arrive later.
        streams: stdout and stderr in place of this process's own.
    """

    def __init__(
        self,
        launch: Launch,
        job: Job,
        job_input: JobInput | None = None,
        streams: Sequence[BinaryIO | None] = (None, None),
    ) -> None:
        self.job = job
        self.contact = Contact([], job_input)
        self._launch = launch
        self._streams = streams
        self._end: JobEnd | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="parallax-job", daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end, and returns whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def end(self) -> JobEnd:
        """Returns its end; raises the exception of its launch."""
        if self._end is None:
            raise self._error or RuntimeError("The thread of a job has ended without a result.")
        return self._end

    def _run(self) -> None:
        try:
            self._end = self._launch(self.job, *self._streams, self.contact)
        except BaseException as error:  # raised again by `end`, in the thread that waits
            self._error = error


class SpareJob:
    """A job that waits for its message.

    Args:
        launch: as `launch.launch`.
        job: the job that it becomes; standby: the variable, with its value, that makes its processes wait.
        streams: the streams of its output from then on.
    """

    def __init__(self, launch: Launch, job: Job, standby: tuple[str, str], streams: tuple[BinaryIO, BinaryIO]) -> None:
        self.hosts = tuple(host.address for host in job.cluster.hosts)
        self._pieces = job.input
        self._job_input = JobInput()
        self._streams = [BufferedStream(stream) for stream in streams]
        waiting = replace(job, environment=(*job.environment, standby), input=(), forks_workers=False)
        buffered_streams = [cast(BinaryIO, stream) for stream in self._streams]
        self._running = RunningJob(launch, waiting, self._job_input, buffered_streams)

    @property
    def ready_bytes(self) -> int | None:
        """The memory of its processes; None until all of them are ready."""
        ready = self._running.contact.progress.ready_bytes
        return sum(ready) if len(ready) == self._running.job.num_ranks else None

    @property
    def is_alive(self) -> bool:
        """Whether it can still become the job."""
        return not self._running.wait(0)

    def go(self) -> RunningJob:
        """Sends it its message; it runs from now on."""
        for stream in self._streams:
            stream.release()
        self._job_input.send(self._pieces)
        return self._running

    def stop(self) -> None:
        """Requests its end; `wait` waits for that."""
        self._running.contact.signals.append(signal.SIGTERM)

    def wait(self) -> None:
        """Waits until none of its processes are left, after `stop`."""
        self._running.wait()
        self._job_input.close()  # a job that could not be launched has not closed it


class BufferedStream:
    """A byte stream that buffers its output until it is released.

    Args:
        stream: the underlying stream.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._buffered: list[bytes] | None = []
        self._lock = threading.Lock()

    def release(self) -> None:
        """Writes the buffered output, and from now on writes directly; a second call has no effect."""
        with self._lock:
            buffered, self._buffered = self._buffered, None
            for data in buffered or ():
                self._stream.write(data)

    def isatty(self) -> bool:
        """Whether the underlying stream is a terminal."""
        return self._stream.isatty()

    def fileno(self) -> int:
        """The descriptor of the underlying stream."""
        return self._stream.fileno()

    def write(self, data: bytes) -> None:
        """Writes bytes, or buffers them."""
        with self._lock:
            if self._buffered is None:
                self._stream.write(data)
            else:
                self._buffered.append(data)

    def flush(self) -> None:
        """Flushes the stream, if it has the output."""
        with self._lock:
            if self._buffered is None:
                self._stream.flush()
