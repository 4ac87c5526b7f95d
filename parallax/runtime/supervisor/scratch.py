"""What Open MPI keeps on a host for a job, and leaves there when it is killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path


def scratch_patterns(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Patterns of the session folder and the ranks' shared memory, from the environment of a rank."""
    folder = variables.get("OMPI_MCA_orte_jobfam_session_dir", "")
    number = variables.get("OMPI_MCA_ess_base_jobid", "")
    segments = f"/dev/shm/vader_segment.*.{int(number):x}.*" if number.isdigit() else ""
    return tuple(pattern for pattern in (folder, segments) if pattern)


def remove_scratch(patterns: Iterable[str]) -> None:
    """Removes what the patterns name on this host."""
    for pattern in sorted(patterns):
        for path in Path("/").glob(pattern.lstrip("/")):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
