"""Notifies the other stages of a failed run on this one, because they would wait for its messages.

Their runs fail with the same error: the end of the data is an OutOfRangeError on all stages. After such runs it is
unknown which messages belong together, so no run with messages follows.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import tensorflow as tf

from parallax.base.errors import SessionError
from parallax.base.types import Session
from parallax.transform.building.all_to_all import library
from parallax.transform.passes.cut_stages import StageGraph, send_name

_UNKNOWN = 2  # error_codes.proto
Promise = Mapping[int, int]
"""Message that a run will send -> how many times it will have been sent, including this run."""


class StageFailures:
    """The runs of one worker for whose messages other stages wait.

    Args:
        stages: the model's stages, and the one that this worker computes.
    """

    def __init__(self, stages: StageGraph) -> None:
        self._peers = {one.number: one.target for one in stages.messages}
        self._numbers = {send_name(one): one.number for one in stages.messages if one.source == stages.stage}
        self._native = ctypes.CDLL(str(library()))
        self._native.parallax_stages_times.restype = ctypes.c_longlong
        own = self._numbers.values()  # of which initial values have been sent
        self._begun_promises = Counter({number: self._native.parallax_stages_times(number) for number in own})
        self._native.parallax_stages_fail.argtypes = [
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int64,
            ctypes.c_int,
            ctypes.c_char_p,
        ]
        self._failed: BaseException | None = None

    def begin(self, targets: Iterable[object]) -> Promise:
        """Records the start of a run of some tensors and ops; runs start one after the other.

        Raises:
            SessionError: an earlier run has failed, and this one sends something.
        """
        names = (str(getattr(one, "name", one)) for one in targets)
        numbers = [self._numbers[name] for name in names if name in self._numbers]
        if numbers and self._failed is not None:
            raise SessionError(
                f"The stages of a model cannot continue after a failed run: {self._failed} Start a new job, which "
                "resumes from its checkpoint."
            )
        self._begun_promises.update(numbers)
        return {number: self._begun_promises[number] for number in numbers}

    def send_error(self, promise: Promise, error: BaseException) -> None:
        """Sends the error of a failed run in place of its unsent messages."""
        self._failed = self._failed or error
        code = error.error_code if isinstance(error, tf.errors.OpError) else _UNKNOWN
        text = str(getattr(error, "message", error)).encode(errors="replace")
        for number, times in promise.items():
            self._native.parallax_stages_fail(self._peers[number], number, times, code, text)

    def follow(self, raw: Session) -> None:
        """Makes the runs of TensorFlow's session report failures."""
        run = raw.run

        def run_and_tell(fetches: Any, *arguments: Any, **named: Any) -> Any:
            # The keys of a run with hooks are the hooks, which have no order.
            parts = fetches.values() if isinstance(fetches, dict) else [fetches]
            targets = [target for part in parts for target in tf.nest.flatten(part)]
            return self.call(targets, lambda: run(fetches, *arguments, **named))

        raw.run = run_and_tell

    def call(self, targets: Iterable[object], run: Callable[[], Any]) -> Any:
        """Executes a run of some tensors and ops."""
        promise = self.begin(targets)
        try:
            return run()
        except BaseException as error:
            self.send_error(promise, error)
            raise
