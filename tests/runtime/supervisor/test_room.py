import os
from types import SimpleNamespace

import pytest

from parallax.runtime.supervisor.host_checks import SEGMENT_BYTES, SESSION_BYTES, NoSpace, check_room

FULL, ENOUGH = 1 << 20, 1 << 30
TWO_HERE = {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "OMPI_MCA_btl": "self,vader"}


@pytest.fixture
def has_free(monkeypatch, tmp_path):
    """Sets how much is free in the folder of the session, and in shared memory."""

    def set_free(session, shared):
        free = {str(tmp_path): session, "/dev/shm": shared}
        found = lambda folder: SimpleNamespace(f_blocks=1, f_frsize=1, f_bavail=free[folder])  # noqa: E731
        monkeypatch.setattr(os, "statvfs", found)
        return {"OMPI_MCA_orte_jobfam_session_dir": str(tmp_path)}

    return set_free


def test_a_rank_starts_where_open_mpi_has_room(has_free):
    check_room({**has_free(SESSION_BYTES, 2 * SEGMENT_BYTES), **TWO_HERE})


def test_a_full_disk_under_the_session_is_named(has_free):
    with pytest.raises(
        NoSpace, match=r"needs 12 MiB in /.* on .*, but only 1.0 MiB are free. Free some, or set TMPDIR"
    ):
        check_room(has_free(FULL, FULL))


def test_full_shared_memory_is_named_where_ranks_share_it(has_free):
    session = has_free(ENOUGH, FULL)
    with pytest.raises(NoSpace, match=r"needs 4 MiB in /dev/shm on .*, but only 1.0 MiB are free. .* \(--shm-size\)"):
        check_room({**session, **TWO_HERE})
    check_room({**session, **TWO_HERE, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"})
    check_room({**session, **TWO_HERE, "OMPI_MCA_btl": "self,tcp"})
