"""What metrics of all workers come to, which travel beside the next step."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.errors import SessionError
from parallax.keras.logs import LateLogs
from parallax.keras.metrics import MetricSums


class TwoWorkers:
    """A communicator on which the other worker has the same sums, and a digest of its own."""

    def __init__(self, digest):
        self._digest, self.given, self._waiting = digest, 0, None

    def Get_size(self):
        return 2

    def Iallreduce(self, own, whole):
        self.given, self._waiting = self.given + 1, (own, whole)
        return self

    def Test(self):
        own, whole = self._waiting
        other = own.copy()
        other[:2] = self._digest, self._digest**2
        whole[:] = own + other
        return True


def sums(digest=5):
    comm = TwoWorkers(digest)
    return MetricSums([tf.Variable(1.0), tf.Variable([0, 2])], comm), comm


PARTS = [np.float32(3.0), np.array([1, 4])]


def test_the_sums_of_a_step_are_those_of_all_workers_over_what_was_there():
    found, _ = sums()
    found.send(PARTS, {"own": np.float32(0.25)}, 5)
    assert [value.tolist() for value in found.sums] == [7.0, [2, 10]]
    assert found.others == {"own": 0.25}


def test_who_reads_nothing_waits_for_nothing():
    found, comm = sums()
    found.send(PARTS, {}, 5)
    found.send([2 * part for part in PARTS], {}, 5)
    assert comm.given == 2
    assert [value.tolist() for value in found.sums] == [13.0, [4, 18]]


def test_sums_begin_anew_after_what_was_on_its_way():
    found, _ = sums()
    found.send(PARTS, {}, 5)
    found.begin_at({0: 0.0})
    assert [value.tolist() for value in found.sums] == [0.0, [2, 10]]


def test_other_input_is_told_when_the_next_step_begins():
    found, _ = sums(digest=6)
    found.send(PARTS, {}, 5)
    with pytest.raises(SessionError, match="must read the same batches"):
        found.send(PARTS, {}, 5)


def test_logs_of_one_kind_of_step_are_not_those_of_another():
    found, _ = sums()
    found.send(PARTS, {"own": np.float32(0.25)}, 5)
    found.send(PARTS, {}, 5)
    assert found.others == {}


def test_the_sums_of_a_step_stay_those_of_that_step():
    found, _ = sums()
    found.send(PARTS, {"own": np.float32(0.25)}, 5)
    first = found.latest
    found.send([2 * part for part in PARTS], {}, 5)
    assert [value.tolist() for value in first.sums] == [7.0, [2, 10]] and first.others == {"own": 0.25}


def test_late_logs_are_computed_once_and_only_when_one_looks():
    computed = []
    logs = LateLogs({"a": 0.0}, lambda: computed.append(1) or {"a": 3.0})
    assert logs and isinstance(logs, dict) and not computed
    assert dict(logs) == {"a": 3.0} == logs.copy() and logs["a"] == 3.0 and computed == [1]
    assert all(look(LateLogs({"a": 0.0}, lambda: {"a": 3.0})) for look in LOOKS)


LOOKS = (
    lambda logs: logs == {"a": 3.0},
    lambda logs: list(logs.items()) == [("a", 3.0)],
    lambda logs: list(logs.values()) == [3.0],
    lambda logs: list(logs) == ["a"] == list(logs.keys()) and "a" in logs,
    lambda logs: logs.get("a") == 3.0 and logs.get("b", 1.0) == 1.0,
    lambda logs: repr(logs) == "{'a': 3.0}",
    lambda logs: {**logs} == {"a": 3.0},
    lambda logs: {} | logs == {"a": 3.0},
)
