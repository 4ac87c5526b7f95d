"""For scripts of tests: finds the workers of this process, to do them harm."""

import os
from pathlib import Path

RANK = b"OMPI_COMM_WORLD_RANK="
WORKERS = ([b"-m", b"parallax.runtime.worker.main"], [b"-m", b"parallax.runtime.worker.fork_server"])


def find_workers():
    """The processes of workers below this one, by their numbers."""
    return sorted(process for process, _ in _workers())


def find_worker(rank):
    """The first process that was started as this rank; spare jobs have others."""
    return min(process for process, found in _workers() if found == rank)


def _workers():
    """The processes of workers below this one, with their ranks."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            rank, above = _rank_of(folder), int(folder.name)
            while rank is not None and above > 1:
                above = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
                if above == os.getpid():
                    yield int(folder.name), rank
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue


def _rank_of(folder):
    """The rank of a worker; None of other processes."""
    if (folder / "cmdline").read_bytes().split(b"\0")[1:3] not in WORKERS:
        return None
    variables = (folder / "environ").read_bytes().split(b"\0")
    return next((int(one.partition(b"=")[2]) for one in variables if one.startswith(RANK)), None)
