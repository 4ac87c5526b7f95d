"""For scripts of tests: finds the workers of this process, to do them harm."""

import os
from pathlib import Path


def find_workers():
    """The processes of workers below this one, by their numbers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words, above = path.read_bytes().split(b"\0"), int(path.parent.name)
            while above > 1 and words[1:3] == [b"-m", b"parallax.runtime.worker.main"]:
                above = int(Path(f"/proc/{above}/stat").read_text().rpartition(")")[2].split()[1])
                if above == os.getpid():
                    found.append(int(path.parent.name))
                    break
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
    return sorted(found)


def find_worker(rank):
    """The first process that was started as this rank; spare jobs have others."""
    ranks = {}
    for process in find_workers():
        for variable in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == b"OMPI_COMM_WORLD_RANK":
                ranks.setdefault(int(value), process)
    return ranks[rank]
