"""Arrays that processes of one machine share: what each has mapped, and what is left of them."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from parallax.functions.batches.shared_arrays import ArrayKind, SharedArrays, can_open

ARRAYS = [np.arange(7, dtype=np.int8), np.arange(6.0).reshape(2, 3), np.zeros([0, 4], np.int32), np.array(5)]
# Three machines of 3, 2 and 1 workers; `far` sees no process of the others.
AMONG = """
import numpy as np
from mpi4py import MPI
from parallax.functions.batches import shared_arrays
from parallax.functions.batches.shared_arrays import SharedArrays

workers = MPI.COMM_WORLD.Dup()
rank, far = workers.rank, 2
rows = np.random.default_rng(1).normal(size=[1000, 3])
shared_arrays._PIECE_BYTES = 1 << 10
own = SharedArrays.copy_of([rows, np.arange(1000)]) if rank == 0 else None
kinds = workers.bcast(None if own is None else own.kinds)
made, allocate, open_ = [], SharedArrays.allocate, SharedArrays.open
def counted(kinds):
    made.append(rank)
    return allocate(kinds)
def refused(place, kinds):
    raise FileNotFoundError
SharedArrays.allocate = staticmethod(counted)
if rank == far:
    SharedArrays.open = staticmethod(refused)
shared = shared_arrays.share_among_workers(kinds, own, workers, "aaabbc"[rank])
assert (shared.arrays[0] == rows).all() and (shared.arrays[1] == np.arange(1000)).all()
assert not shared_arrays.can_open(workers.bcast(shared.place if rank == 0 else None), kinds) or rank == far
found = workers.gather((rank, bool(made)))
if rank == 0:
    print("copies", sorted(rank for rank, made in found if made))
"""


def test_copies_are_the_arrays_and_begin_where_tensorflow_takes_them_as_they_are():
    shared = SharedArrays.copy_of(ARRAYS)
    for copy, array in zip(shared.arrays, ARRAYS, strict=True):
        np.testing.assert_array_equal(copy, array)
        assert copy.dtype == array.dtype
        assert not np.shares_memory(copy, array)
        assert copy.ctypes.data % 64 == 0


def test_arrays_are_converted_as_they_are_copied():
    shared = SharedArrays.copy_of([np.arange(3.0)[::-1]], [np.float32])
    assert shared.kinds == (ArrayKind((3,), "<f4"),)
    assert shared.arrays[0].tolist() == [2, 1, 0]


def test_another_process_has_them_and_cannot_write_them():
    shared = SharedArrays.copy_of(ARRAYS)
    mapped = SharedArrays.open(shared.place, shared.kinds)
    assert [one.tolist() for one in mapped.arrays] == [one.tolist() for one in ARRAYS]
    shared.arrays[0][:] = 3  # one memory
    assert mapped.arrays[0].tolist() == [3] * 7
    with pytest.raises(ValueError, match="read-only"):
        mapped.arrays[0][:] = 4


def test_sealed_arrays_are_kept_by_those_who_have_them():
    shared = SharedArrays.copy_of(ARRAYS)
    mapped, place, kinds = SharedArrays.open(shared.place, shared.kinds), shared.place, shared.kinds
    assert can_open(place, kinds)
    shared.seal()
    shared.seal()
    assert not can_open(place, kinds)
    del shared
    assert mapped.arrays[1].tolist() == ARRAYS[1].tolist()


def test_a_file_that_is_another_one_is_not_taken_for_them():
    shared = SharedArrays.copy_of(ARRAYS)
    assert not can_open(replace(shared.place, inode=shared.place.inode + 1), shared.kinds)
    assert not can_open(replace(shared.place, process=2**22 + 1), shared.kinds)


def test_workers_have_worker_0s_arrays_once_on_each_host():
    done = subprocess.run(
        [sys.executable, "-m", "tests.launched", "6", "-c", AMONG], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "copies [2, 3, 5]" in done.stdout  # worker 0 has its own; 2 sees nobody, 3 and 5 lead
