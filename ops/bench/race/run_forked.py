"""Processes of a race's systems that share the memory of their imports: a host forks them from one interpreter.

    python -m ops.bench.race.run_forked MODULE WORDS...

Runs a module as `python -m MODULE WORDS...` would, in a process that the host's fork server forks
(`parallax.runtime.worker.fork_server`, which forks Parallax's own workers too). The first process of a host starts the
server, which imports TensorFlow and Horovod, but nothing of Parallax's front end. So 48 workers of a plain system fit
into the memory of one machine.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path

from parallax.runtime.supervisor.worker_process import (
    ForkedWorker,
    WorkerOrder,
    WorkerProcess,
    connect_to_server,
    server_name,
)

_SERVE = "--serve"
_SERVER = ("-m", "ops.bench.race.run_forked", _SERVE)
_PIECE = 1 << 16


def fork_argv(words: tuple[str, ...]) -> tuple[str, ...]:
    """Returns an interpreter's words `-m MODULE WORDS...`, changed to run the module in a process of a fork server."""
    return ("-m", "ops.bench.race.run_forked", *words[1:])


def main() -> int:
    """Runs a module in a forked process, relays its output, and returns its exit status."""
    module, *words = sys.argv[1:]
    environment = dict(os.environ)
    name = server_name(Path(words[0]).parent.name)  # the system's folder, which is unique to the race and the start
    order = WorkerOrder(("-m", module, *words), environment, None, ())
    worker = ForkedWorker(order, lambda output: connect_to_server(name, _SERVER, environment, output))
    _relay(worker)
    status = worker.wait()
    return status if status >= 0 else 128 - status


def _relay(worker: WorkerProcess) -> None:
    """Copies standard output and errors until the worker has ended; the fork server may keep them open."""
    outputs = {worker.streams["stdout"]: 1, worker.streams["stderr"]: 2}
    while True:
        has_ended = worker.has_ended()
        news = [] if worker.news_fd is None else [worker.news_fd]
        ready = select.select([*outputs, *news], [], [], 0 if has_ended else None)[0]
        if has_ended and not ready:
            return
        for fd in (one for one in ready if one in outputs):
            data = os.read(fd, _PIECE)
            if data:
                os.write(outputs[fd], data)
            else:
                del outputs[fd]


def serve(listening: socket.socket) -> None:
    """Forks processes until none is left; in each of them, runs its module."""
    from parallax.runtime.worker.fork_server import ForkServer, import_modules

    import_modules(("numpy", "tensorflow", "horovod.tensorflow"))
    order = ForkServer(listening).serve()
    if order is not None:
        order.become()


if __name__ == "__main__":
    if sys.argv[1] == _SERVE:
        serve(socket.socket(fileno=int(sys.argv[2])))
    else:
        sys.exit(main())
