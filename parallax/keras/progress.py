"""How far a `fit` with checkpoints is in its epochs, and where one that goes on from a checkpoint begins.

Each epoch's beginning is noted in a variable that checkpoints have: its number, the step at which it began, and how
many batches it has. With the checkpoint's step, that is the place. Callbacks that choose the first epoch, as
BackupAndRestore does where it finds a backup, have the last word: they bring the weights of that epoch.
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
    """The first epoch of a `fit` that goes on, as long as no callback has chosen another."""


class Epochs(Protocol):
    """What goes over the batches of epochs."""

    @property
    def known_batches(self) -> int | None:
        """How many batches an epoch has; None where that is not known beforehand."""


@dataclass
class FitProgress:
    """How far a call of `fit` is, on one worker; all workers make the same calls.

    Attributes:
        model: whose `fit` it is.
        running: its steps.
        first_epoch: at which the call begins where no checkpoint says another.
        last_epoch: before which it ends.
        epochs: what goes over its training batches; None before Keras makes it.
        skipped_epochs: how many whole epochs are passed over at the beginning.
        skipped_batches: how many batches of the epoch after them.
        batches: how many the last epoch had; None before one has ended.
    """

    model: KerasModel
    running: RunningSteps | RemoteSteps
    first_epoch: int
    last_epoch: int
    epochs: Epochs | None = None
    skipped_epochs: int = 0
    skipped_batches: int = 0
    batches: int | None = None
    _began: int = 0  # at this step the epoch

    def follow(self, epochs: Epochs) -> bool:
        """Looks at what goes over batches; says whether it is the first, that of training."""
        if self.epochs is not None:
            return False
        self.epochs = epochs
        return True

    def pop_skipped(self) -> tuple[int, int]:
        """How many epochs, and batches of the next, are passed over now: asked for once, before batches are taken."""
        found = self.skipped_epochs, self.skipped_batches
        self.skipped_epochs = self.skipped_batches = 0
        return found

    @contextmanager
    def within(self, hook: str, *args: Argument) -> Iterator[None]:
        """What surrounds a hook of the callbacks.

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
        """Has `fit` begin where the checkpoint was written."""
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
        """Passes over nothing where a callback has chosen the first epoch."""
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
