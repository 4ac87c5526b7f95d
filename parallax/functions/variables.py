"""The variables of a script while workers train them: reads and writes behave as in one process.

Each worker has a part of the variables of metrics, which starts at zero; their value is the sum of the script's last
write and all parts. The value of any other variable is that of the workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from parallax.base.errors import ConfigError
from parallax.base.types import Operation, PortableValue, Value, Variable
from parallax.functions.metric_sums import MetricSums
from parallax.functions.mirrors import Mirrors
from parallax.functions.remote.remote_steps import RemoteSteps
from parallax.functions.tracing.traced_values import InFile, bytes_of, initial_of
from parallax.report.logger import log
from parallax.report.text import bytes_text, pluralize
from parallax.settings.parts import TableConfig

_NO_FOLDER = (
    "A model whose large variables have more than {limit} (TableConfig.whole_bytes) gets them back as a checkpoint "
    "that its workers write, which needs a folder; this one has {size} in {count}. Name a folder: parallax run "
    "--tables-dir DIR, or TableConfig(tables_dir=...). Or raise the limit: --whole-bytes N."
)
_BACKUP = "The workers have failed: variables hold the values from {seconds:.1f} s earlier, after {steps}."
_NO_BACKUP = "The workers have failed before all variables were read: each variable holds the value of its last read."
_WRITTEN = "The trained model is in the checkpoint {prefix}, which alone has {count} of it (docs/keras.md)."


class TrainedVariables:
    """The variables that workers train for the script.

    Attributes:
        by_name: the script's tf.Variables, including those of metrics.
        mirrors: the same, kept consistent with the workers'.
        sums: those of metrics.
        numbers: by step, the indices of the `sums` that it returns, in its order.
        is_released: whether it has ended.
    """

    def __init__(
        self,
        running: RemoteSteps,
        metrics: Mapping[str, Sequence[Variable]],
        names: Mapping[int, str],
        reset: Operation,
        guard: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """Sends the script's values to the workers, and mirrors its variables.

        Args:
            running: the steps.
            metrics: by step, the tf.Variables of metrics whose sums it returns.
            names: id of a tf.Variable -> its name in the graph.
            reset: op of the graph that resets the workers' parts of metrics to zero.
            guard: a context for requests of values to workers.
        """
        self._running, self._reset, self._guard = running, reset, guard
        self.is_released = False
        number_by_id: dict[int, int] = {}
        for variables in metrics.values():
            for one in variables:
                number_by_id.setdefault(id(one), len(number_by_id))
        by_id = {id(one): one for variables in metrics.values() for one in variables}
        self.sums = MetricSums([by_id[key] for key in number_by_id])
        self.numbers = {step: [number_by_id[id(one)] for one in variables] for step, variables in metrics.items()}
        self._number_by_id = {names.get(key, f"metric {number}"): number for key, number in number_by_id.items()}
        name_of = dict(zip(number_by_id, self._number_by_id, strict=True))
        running.begin({step: [name_of[id(one)] for one in variables] for step, variables in metrics.items()})
        session_variables = running.variables()
        self._trained = [name for name in session_variables if name not in self._number_by_id]
        summed = {name: self.sums.variables[number] for name, number in self._number_by_id.items()}
        self.by_name = {**session_variables, **summed}
        self.mirrors = Mirrors(self.by_name.items(), self._fetch)
        if running.resumed_step is not None:
            self.mirrors.invalidate(self._trained)
        if number_by_id:  # workers of an open session, and checkpoints, have parts of earlier steps
            running.reset(reset)

    def invalidate(self, written: Collection[str] | None = None) -> None:
        """Records that a step has run.

        Args:
            written: the names of the variables that it may have changed, without those of metrics; None: of all.
        """
        self.mirrors.invalidate(self._number_by_id)
        self.mirrors.invalidate(self._trained if written is None else written)

    def flush(self) -> None:
        """Sends the script's writes to the workers."""
        written, self.mirrors.written = sorted(self.mirrors.written), set()
        if not written:
            return
        values = {name: self.mirrors.variable(name).numpy() for name in written}
        metrics = {self._number_by_id[name]: values.pop(name) for name in written if name in self._number_by_id}
        self._running.write(values)
        if metrics:
            self._running.reset(self._reset)
            self.sums.begin_at(metrics)

    def values(self, tables: TableConfig) -> dict[str, PortableValue]:
        """The values of all variables by name; large ones are written to files if requested.

        Args:
            tables: the settings for large variables.

        Raises:
            CheckpointError: the files cannot be written.
            ConfigError: no folder is set for them.
        """
        self.flush()
        self.sums.latest.arrive()
        variables = self._running.variables()
        large = find_large_variables(variables, tables)
        value_by_name: dict[str, PortableValue] = {}
        value_by_name.update(self._running.read([name for name in self._trained if name not in large]))
        value_by_name.update({name: self.sums.sums[number] for name, number in self._number_by_id.items()})
        if large:
            check_folder(variables, tables)
            places = self.store(Path(tables.tables_dir or ""))
            log.info(_WRITTEN.format(prefix=places[large[0]].prefix, count=pluralize(len(large), "large variable")))
            value_by_name.update({name: places[name] for name in large})
        return value_by_name

    def store(self, folder: Path, step: int | None = None) -> dict[str, InFile]:
        """Writes a checkpoint of the variables, without those of metrics.

        Args:
            folder: on worker 0's host.
            step: its number; None for the number after those in the folder.

        Returns:
            The place of each variable, by name.

        Raises:
            CheckpointError: writing fails.
        """
        self.flush()
        return self._running.store(folder, self._trained, step)

    def fall_back(self) -> None:
        """Sets the script's variables to the values of the last read from the workers, which have failed."""
        if not self.mirrors.stale:
            return
        backup = self._running.backup
        if backup is None:
            log.warning(_NO_BACKUP)
            return
        for name, value in backup.values.items():
            self.mirrors.put(name, value)
        steps = pluralize(backup.runs, "step")
        log.warning(_BACKUP.format(steps=steps, seconds=time.monotonic() - backup.read_s))

    def refresh_changed(self) -> None:
        """Sets the script's variables that steps may have changed to the workers' values."""
        for name in self.by_name:
            self.mirrors.refresh_if_changed(name)

    def release(self) -> None:
        """Ends the training; the variables keep their current values."""
        self.is_released = True
        self.mirrors.release()

    def _fetch(self, name: str) -> Value:
        if name in self._number_by_id:
            return self.sums.sums[self._number_by_id[name]]
        with self._guard():
            return self._running.read([name])[name]


def find_large_variables(variables: Mapping[str, Variable], tables: TableConfig) -> list[str]:
    """The names of traced variables, if together they exceed the limit of one process; else none."""
    traced = {name: bytes_of(one) for name, one in variables.items() if initial_of(one) is not None}
    return list(traced) if sum(traced.values()) > tables.whole_bytes else []


def check_folder(variables: Mapping[str, Variable], tables: TableConfig) -> None:
    """Refuses to train variables that could not be stored.

    Raises:
        ConfigError: large variables are not to be sent back, and no folder is set for them.
    """
    large = find_large_variables(variables, tables)
    if large and tables.tables_dir is None:
        sizes = [bytes_of(variables[name]) for name in large]
        raise ConfigError(
            _NO_FOLDER.format(
                count=pluralize(len(sizes), "variable"),
                size=bytes_text(sum(sizes)),
                limit=bytes_text(tables.whole_bytes),
            )
        )
