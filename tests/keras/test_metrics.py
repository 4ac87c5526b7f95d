"""The sums of metrics over all workers, which arrive during the next step."""

import numpy as np
import pytest
import tensorflow as tf

from parallax.functions.metric_sums import MetricSums
from parallax.keras.step_logs import LateLogs

PARTS = [np.float32(6.0), np.array([2, 8])]


def sums():
    return MetricSums([tf.Variable(1.0), tf.Variable([0, 2])])


def test_the_sums_of_a_step_are_those_of_all_workers_over_what_was_there():
    found = sums()
    found.follow([0, 1], lambda: (PARTS, {"own": np.float32(0.25)}))
    assert [value.tolist() for value in found.sums] == [7.0, [2, 10]]
    assert found.others == {"own": 0.25}


def test_who_reads_nothing_waits_for_nothing_but_the_step_before():
    found, waited = sums(), []

    def given(number):
        waited.append(number)
        return [number * part for part in PARTS], {}

    for number in range(1, 4):
        found.follow([0, 1], lambda number=number: given(number))
        assert waited == list(range(1, number))
    assert [value.tolist() for value in found.sums] == [19.0, [6, 26]]


def test_a_step_leaves_the_sums_of_other_steps_metrics_as_they_are():
    found = sums()
    found.follow([1], lambda: (PARTS[1:], {}))
    found.follow([0], lambda: (PARTS[:1], {}))
    assert [value.tolist() for value in found.sums] == [7.0, [2, 10]]


def test_sums_that_were_interrupted_are_there_when_they_are_asked_for_again():
    found, calls = sums(), []

    def wait():
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return PARTS[1:], {}

    found.follow([0], lambda: (PARTS[:1], {}))
    found.follow([1], wait)
    with pytest.raises(KeyboardInterrupt):
        found.latest.arrive()
    assert [value.tolist() for value in found.sums] == [7.0, [2, 10]]


def test_sums_begin_anew_after_what_was_on_its_way():
    found = sums()
    found.follow([0, 1], lambda: (PARTS, {}))
    found.begin_at({0: 0.0})
    assert [value.tolist() for value in found.sums] == [0.0, [2, 10]]


def test_logs_of_one_kind_of_step_are_not_those_of_another():
    found = sums()
    found.follow([0, 1], lambda: (PARTS, {"own": np.float32(0.25)}))
    found.follow([0, 1], lambda: (PARTS, {}))
    assert found.others == {}


def test_the_sums_of_a_step_stay_those_of_that_step():
    found = sums()
    found.follow([0, 1], lambda: (PARTS, {"own": np.float32(0.25)}))
    first = found.latest
    found.follow([0, 1], lambda: ([2 * part for part in PARTS], {}))
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
