"""Images of variables: what is read of them, what is refused, and that nothing of them is left."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.runtime.worker.frozen_ops import frozen_ops

v1 = tf.compat.v1
LARGE = 300_000  # elements: pages of its own, and some that it shares with others


@dataclass
class Frozen:
    """A graph with a table, a small variable and a reference variable, and ops that freeze and read them."""

    session: Any
    variables: list[Any]
    image: Any
    place: Any
    process: Any
    bytes: Any
    thaw: Any

    def freeze(self, name: str) -> int:
        return int(self.session.run(self.process, {self.image: name}))

    def read(self, name: str, buffer: int, first: int, count: int) -> Any:
        """Elements of four bytes."""
        fed = {self.image: name, self.place: [buffer, 4 * first, 4 * count]}
        return self.session.run(self.bytes, fed).view(np.float32)

    def end(self, name: str) -> None:
        self.session.run(self.thaw, {self.image: name})


def build(is_last: bool = False, silent_s: int = 20) -> Frozen:
    ops = frozen_ops()
    table = v1.get_variable("table", initializer=tf.range(LARGE, dtype=tf.float32), use_resource=True)
    small = v1.get_variable("small", [3], initializer=tf.ones_initializer(), use_resource=True)
    reference = v1.get_variable("reference", initializer=tf.fill([LARGE], 5.0), use_resource=False)
    image, place = v1.placeholder(tf.string, []), v1.placeholder(tf.int64, [3])
    process = ops.parallax_freeze(image=image, variables=[table.handle, small.handle], values=[reference._ref()])
    found = ops.parallax_frozen_bytes(image=image, place=place, is_last=is_last, silent_s=silent_s)
    session = v1.Session()
    session.run(v1.global_variables_initializer())
    return Frozen(session, [table, small, reference], image, place, process, found, ops.parallax_thaw(image=image))


@pytest.fixture
def frozen() -> Iterator[Frozen]:
    with tf.Graph().as_default():
        made = build()
        with made.session:
            yield made


def overwrite(frozen: Frozen, value: float) -> None:
    """By row, as sparse updates write, and whole."""
    table, small, reference = frozen.variables
    indices = np.arange(0, LARGE, 1024)
    frozen.session.run(tf.raw_ops.ResourceScatterUpdate(resource=table.handle, indices=indices, updates=value))
    frozen.session.run([small.assign([value] * 3), reference.assign(tf.fill([LARGE], value))])


def children() -> list[int]:
    """The processes that this one has made, of all its threads."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def test_what_is_written_later_is_not_in_an_image(frozen: Frozen) -> None:
    frozen.freeze("first")
    overwrite(frozen, -1.0)
    process = frozen.freeze("second")
    overwrite(frozen, -2.0)
    whole = np.arange(LARGE, dtype=np.float32)
    np.testing.assert_array_equal(frozen.read("first", 0, 0, LARGE), whole)
    np.testing.assert_array_equal(frozen.read("first", 0, 1000, 2000), whole[1000:3000])
    np.testing.assert_array_equal(frozen.read("first", 1, 0, 3), [1, 1, 1])
    np.testing.assert_array_equal(frozen.read("first", 2, 0, LARGE), np.full(LARGE, 5, np.float32))
    whole[::1024] = -1.0
    frozen.end("first")
    np.testing.assert_array_equal(frozen.read("second", 0, 0, LARGE), whole)
    np.testing.assert_array_equal(frozen.read("second", 2, LARGE - 2, 2), [-1, -1])
    assert process in children()
    frozen.end("second")
    frozen.end("second")  # nothing happens
    assert process not in children()


def test_an_image_is_read_in_order_once_where_its_memory_is_given_back() -> None:
    with tf.Graph().as_default():
        frozen = build(is_last=True)
        with frozen.session:
            frozen.freeze("once")
            overwrite(frozen, -1.0)
            parts = [frozen.read("once", 0, first, 1000) for first in range(0, LARGE, 1000)]
            np.testing.assert_array_equal(np.concatenate(parts), np.arange(LARGE, dtype=np.float32))
            np.testing.assert_array_equal(frozen.read("once", 1, 0, 3), [1, 1, 1])
            np.testing.assert_array_equal(frozen.read("once", 2, 0, LARGE), np.full(LARGE, 5, np.float32))
            with pytest.raises(tf.errors.FailedPreconditionError, match=f"before byte {4 * LARGE} are gone; byte 0"):
                frozen.read("once", 0, 0, 1)
            frozen.end("once")


def test_what_is_not_there_is_named(frozen: Frozen) -> None:
    frozen.freeze("one")
    with pytest.raises(tf.errors.AlreadyExistsError, match="there is one named one"):
        frozen.freeze("one")
    with pytest.raises(tf.errors.NotFoundError, match="no image named other"):
        frozen.read("other", 0, 0, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has buffers 0 to 2, and buffer 3 was asked for"):
        frozen.read("one", 3, 0, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has 12 bytes, and 8 from byte 8 on were asked for"):
        frozen.read("one", 1, 2, 2)
    assert frozen.read("one", 1, 3, 0).size == 0
    frozen.end("one")


def test_an_image_whose_process_was_killed_is_an_error_and_not_a_wait(frozen: Frozen) -> None:
    process = frozen.freeze("killed")
    os.kill(process, signal.SIGTERM)  # which ends its parent, and by that the image
    assert frozen.read("killed", 1, 0, 1) == [1]
    os.kill(process, signal.SIGKILL)
    with pytest.raises(tf.errors.AbortedError, match=f"Process {process}, which held .* killed, has ended: signal 9"):
        frozen.read("killed", 0, 0, LARGE)
    frozen.end("killed")
    assert process not in children()


def test_an_image_whose_process_is_stopped_is_waited_for_and_then_lost() -> None:
    with tf.Graph().as_default():
        frozen = build(silent_s=3)
        with frozen.session:
            process = frozen.freeze("stopped")
            os.kill(process, signal.SIGSTOP)
            resumes = threading.Timer(1.0, os.kill, (process, signal.SIGCONT))
            resumes.start()
            np.testing.assert_array_equal(frozen.read("stopped", 0, 0, LARGE), np.arange(LARGE, dtype=np.float32))
            resumes.join()
            os.kill(process, signal.SIGSTOP)
            for _ in range(2):  # the second is not waited for
                with pytest.raises(tf.errors.DeadlineExceededError, match=f"Process {process}, .* no byte for 3 s"):
                    frozen.read("stopped", 1, 0, 1)
            frozen.end("stopped")
            assert process not in children()


def freeze_with_no_descriptor_left() -> None:
    with tf.Graph().as_default():
        frozen = build()
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            with pytest.raises(tf.errors.ResourceExhaustedError, match="socketpair failed: Too many open files"):
                frozen.freeze("later")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        frozen.end("later")
        assert frozen.freeze("later") in children()
        frozen.end("later")


def test_a_process_that_may_open_no_more_files_is_no_worse_for_it() -> None:
    """In a process of its own: the limit holds for every thread, and other tests' threads run in this one."""
    run = f"from {__name__} import freeze_with_no_descriptor_left as run; run()"
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_has_no_value_or_is_no_plain_memory_is_refused() -> None:
    ops, before = frozen_ops(), children()
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("empty", [3], use_resource=True)
        freeze = ops.parallax_freeze(image="none", variables=[variable.handle], values=[])
        with pytest.raises(tf.errors.OpError, match="empty"):
            session.run(freeze)
        words = ops.parallax_freeze(image="none", variables=[], values=[tf.constant(["a", "b"])])
        with pytest.raises(tf.errors.InvalidArgumentError, match="plain memory, and value 0 is of type string"):
            session.run(words)
    assert set(children()) <= set(before)


def test_an_image_has_no_other_memory_and_no_file(frozen: Frozen) -> None:
    other = np.ones(100_000_000, np.uint8)
    process = frozen.freeze("small")
    frozen.read("small", 1, 0, 1)
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    assert status["Name"].strip() == "parallax-image"
    assert int(status["RssAnon"].split()[0]) * 1024 < other.nbytes / 2  # written parts of libraries
    assert [path.name for path in Path(f"/proc/{process}/fd").iterdir()] == ["0"]
    frozen.end("small")
    assert not Path(f"/proc/{process}").exists()
