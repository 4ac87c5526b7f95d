"""The progress of a `fit` with checkpoints in its epochs, and the position where it resumes from a checkpoint.

Each epoch's start is recorded in a variable that checkpoints include: its number, the step at which it began, and the
number of its batches. Together with the checkpoint's step, that is the position. Callbacks that choose the first epoch,
as BackupAndRestore does where it finds a backup, take precedence: they restore the weights of that epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from parallax.base.types import Argument, KerasModel
from parallax.functions.remote.remote_steps import RemoteSteps
from parallax.functions.remote.step_runner import RunningSteps
from parallax.report.logger import log


class ResumedEpoch(int):
    """The first epoch of a `fit` that resumes, until a callback has chosen another."""


class Epochs(Protocol):
    """The iterator over the batches of epochs."""

    @property
    def known_batches(self) -> int | None:
        """The number of batches in an epoch; None where it is unknown in advance."""


@dataclass
class FitProgress:
    """The progress of a call of `fit`, on one worker; all workers make the same calls.

    Attributes:
        model: the model that is fitted.
        running: its steps.
        first_epoch: the first epoch of the call, unless a checkpoint sets another.
        last_epoch: the epoch before which it ends.
        epochs: the iterator over its training batches; None before Keras creates it.
        skipped_epochs: the number of whole epochs that are skipped at the beginning.
        skipped_batches: the number of skipped batches of the following epoch.
        batches: the number of batches of the last epoch; None before one has ended.
    """

    model: KerasModel
    running: RunningSteps | RemoteSteps
    first_epoch: int
    last_epoch: int
    epochs: Epochs | None = None
    skipped_epochs: int = 0
    skipped_batches: int = 0
    batches: int | None = None
    _began: int = 0  # the epoch began at this step

    def follow(self, epochs: Epochs) -> bool:
        """Records the iterator over batches; returns whether it is the first, that of training."""
        if self.epochs is not None:
            return False
        self.epochs = epochs
        return True

    def pop_skipped(self) -> tuple[int, int]:
        """The numbers of epochs, and of batches of the next one, to skip now: queried once, before batches are read."""
        skipped = self.skipped_epochs, self.skipped_batches
        self.skipped_epochs = self.skipped_batches = 0
        return skipped

    @contextmanager
    def within(self, hook: str, *args: Argument) -> Iterator[None]:
        """The context of a callback hook.

        Args:
            hook: its name.
            args: of its call: an epoch first, where it is one of epochs.
        """
        if hook == "on_train_begin":
            self._go_on()
            yield
            self._settle()
            return
        if hook == "on_epoch_begin":
            self._note(args[0])
        elif hook == "on_epoch_end":
            self.batches = self.running.steps - self._began
            self._note(args[0] + 1)
        yield

    def _go_on(self) -> None:
        """Makes `fit` begin where the checkpoint was written."""
        resumed_step = self.running.resumed_step
        if resumed_step is None:
            return
        epoch, step, batches = self.running.read_epoch()
        done = resumed_step - step
        if done == batches:
            epoch, done = epoch + 1, 0
        if epoch < self.first_epoch:
            epoch, done = self.first_epoch, 0
        self.skipped_epochs, self.skipped_batches = epoch - self.first_epoch, done
        self.model._initial_epoch = ResumedEpoch(epoch)

    def _settle(self) -> None:
        """Skips nothing where a callback has chosen the first epoch."""
        chosen = self.model._initial_epoch
        if not isinstance(chosen, ResumedEpoch):
            self.skipped_epochs = self.skipped_batches = 0
        elif chosen >= self.last_epoch:
            log.info(
                f"Resumed: all {self.last_epoch} epochs of `fit` are already trained. To train from the start, use a "
                "new folder."
            )
        else:
            log.info(f"Resumed: `fit` continues in epoch {chosen + 1}, after {self.skipped_batches} of its batches.")

    def _note(self, epoch: int) -> None:
        known = None if self.epochs is None else self.epochs.known_batches
        self._began = self.running.steps - self.skipped_batches
        self.running.note_epoch(epoch, self._began, known or self.batches)
