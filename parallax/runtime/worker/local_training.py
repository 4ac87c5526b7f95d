"""Detects a script under a `parallax` command that trains in the process that runs it, without Parallax.

A step without Parallax is a session's run that updates variables from gradients, or an update of an optimizer of
TensorFlow or Keras outside of what Parallax traces. Commands that start nothing end the script there. Under all other
commands the user is warned at once, before a long training of one process that was meant for many. Keras's `fit` is
refused (unless the script imports `parallax.keras`, whose own `fit` replaces it), because all workers could run it.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

from parallax.base.after_import import after_import
from parallax.base.errors import ConfigError
from parallax.base.types import Fetches, Graph, Operation
from parallax.settings.environment import Role

_BARE_FIT = (
    "Under `parallax run` all workers train a Keras model if the script imports parallax.keras, but this script "
    "calls fit without that. Add `import parallax.keras`, or start the script with `python` to train in one process."
)
_STARTS_JOBS = (Role.LAUNCH, Role.VERIFY)
_PACKAGE = f"{Path(__file__).resolve().parents[2]}/"
_LIBRARIES = ("tensorflow", "keras", "tf_keras")
_REWRITTEN = "__autograph_generated_file"
_RUNS_SCRIPTS = (runpy.__file__, "<frozen runpy>")


@contextmanager
def noticing_local_training(role: Role, command: str, say: Callable[[str], None]) -> Iterator[None]:
    """Context that detects steps which the script takes without Parallax. TensorFlow must be imported.

    Args:
        role: the role of this process.
        command: of the command line, for the message.
        say: prints a line where the user sees it.

    Raises:
        SystemExit: from the step, with status 1, if the command starts nothing.
    """
    detector = _StepDetector(role in _STARTS_JOBS, command, say)
    detector.install()
    try:
        yield
    finally:
        detector.remove()


class _StepDetector:
    """The replacements of TensorFlow's and Keras's own methods."""

    def __init__(self, starts_jobs: bool, command: str, say: Callable[[str], None]) -> None:
        self._starts_jobs, self._command, self._say = starts_jobs, command, say
        self._replaced: list[tuple[type, str, Any, Any]] = []
        self._trains: dict[tuple[object, ...], bool] = {}
        self._is_removed = self._has_warned = False

    def install(self) -> None:
        from tensorflow.python.client.session import BaseSession
        from tensorflow.python.training.optimizer import Optimizer

        self._before(BaseSession, "run", self._before_run)
        self._before(BaseSession, "make_callable", self._before_run)
        self._before(Optimizer, "apply_gradients", self._before_update)
        after_import("keras", self._install_for_keras)
        after_import("tf_keras", self._install_for_tf_keras)

    def remove(self) -> None:
        self._is_removed = True
        for owner, name, original, method in reversed(self._replaced):
            if getattr(owner, name) is method:
                setattr(owner, name, original)

    def _install_for_keras(self) -> None:
        from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        self._before(TensorFlowTrainer, "fit", _refuse_bare_fit)
        self._before(BaseOptimizer, "apply", self._before_update)

    def _install_for_tf_keras(self) -> None:
        import tf_keras

        for optimizer in (tf_keras.optimizers.Optimizer, tf_keras.optimizers.legacy.Optimizer):
            self._before(optimizer, "apply_gradients", self._before_update)

    def _before(self, owner: type, name: str, look: Callable[..., None]) -> None:
        """Makes a method first call a function with its arguments."""
        original = getattr(owner, name)

        @wraps(original)
        def method(*args: Any, **kwargs: Any) -> Any:
            if not self._is_removed:
                look(*args, **kwargs)
            return original(*args, **kwargs)

        if not self._is_removed:
            self._replaced.append((owner, name, original, method))
            setattr(owner, name, method)

    def _before_run(self, session: Any, fetches: Fetches, *_: Any, **__: Any) -> None:
        """Runs before a run of a TensorFlow session."""
        if self._has_warned:
            return
        ops = _ops_of(session.graph, fetches)
        key = (session.graph, session.graph.version, *ops)
        if key not in self._trains:
            self._trains[key] = trains(session.graph, ops)
        if self._trains[key]:
            self._warn("a run of a session that updates variables from gradients")

    def _before_update(self, *_: Any, **__: Any) -> None:
        """Runs before an optimizer updates variables; in a graph, or a branch or loop of it, this only builds ops."""
        import tensorflow as tf

        with tf.init_scope():  # outside all functions that are being traced
            is_eager = tf.executing_eagerly()
        if is_eager:  # otherwise a graph is built, which may be for parallel_run
            self._warn("an optimizer's update")

    def _warn(self, what: str) -> None:
        place, is_of_parallax = _caller()
        if self._has_warned or is_of_parallax:
            return
        self._has_warned = True
        where = f"{place}: " if place else ""
        here = f"parallax: {where}{what} trains in this process alone, without Parallax"
        remedy = (
            "Give the graph to parallax.parallel_run, the step to parallax.function, or import parallax.keras for fit, "
            "before anything is trained"
        )
        if self._starts_jobs:
            self._say(f"{here}, and nothing is distributed. {remedy}.")
            return
        self._say(f"{here}, and `parallax {self._command}` trains nothing, so the script was ended there. {remedy}.")
        sys.exit(1)


def trains(graph: Graph, ops: Sequence[Operation]) -> bool:
    """Whether ops of a graph, with their dependencies, update variables from gradients.

    They do when an optimizer's op is among them, or both a tensor from autodiff and an op that writes a variable.

    Args:
        graph: a tf.Graph.
        ops: of it.
    """
    from parallax.analysis.reading.construction.record import records_of
    from parallax.graph.ops import state_op

    delivered = {gradient.values.name for record in records_of(graph) for gradient in record.gradients}
    waiting, seen = list(ops), set(ops)
    has_gradient = writes = False
    while waiting:
        op = waiting.pop()
        state = state_op(op.type, len(op.inputs))
        if state is not None and state.kind == "apply":
            return True
        writes = writes or state is not None
        has_gradient = has_gradient or any(output.name in delivered for output in op.outputs)
        if writes and has_gradient:
            return True
        for needed in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if needed not in seen:
                seen.add(needed)
                waiting.append(needed)
    return False


def _ops_of(graph: Graph, fetches: Fetches) -> tuple[Operation, ...]:
    """The ops that fetches name; invalid fetches are left to the session."""
    import tensorflow as tf

    ops = []
    for fetch in tf.nest.flatten(fetches):
        try:
            element = graph.as_graph_element(fetch, allow_tensor=True, allow_operation=True)
        except (KeyError, ValueError, TypeError):
            continue
        ops.append(getattr(element, "op", element))
    return tuple(ops)


def _refuse_bare_fit(*_: Any, **__: Any) -> None:
    """Makes Keras's `fit` raise an error that names the required import."""
    if "parallax.keras" not in sys.modules:
        raise ConfigError(_BARE_FIT)


def _caller() -> tuple[str, bool]:
    """`FILE:LINE` of the calling script, and whether a frame of Parallax is between the script and this function."""
    place, is_of_parallax = "", False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename not in _RUNS_SCRIPTS:
        file = frame.f_code.co_filename
        if file.startswith(_PACKAGE):
            is_of_parallax = is_of_parallax or frame.f_code.co_filename != __file__
        elif not place and not _is_of_library(frame):
            place = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return place, is_of_parallax


def _is_of_library(frame: FrameType) -> bool:
    """Whether a frame is TensorFlow's or Keras's, or of a function that TensorFlow has rewritten."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.split(".")[0] in _LIBRARIES or _REWRITTEN in frame.f_code.co_filename
