"""Reads a full checkpoint and the increments that follow it as if they were one checkpoint.

Rows of an increment override those of earlier checkpoints. A range of rows is read from the full checkpoint and then
overwritten with each increment's rows of that range. So memory holds at most the range and the row numbers of one
variable: eight bytes for each row of an increment.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from parallax.base.errors import CheckpointError
from parallax.base.types import Array
from parallax.runtime.checkpoint.format.bundle import Bundle, Tensor
from parallax.runtime.checkpoint.format.folder import INCREMENT, candidates, delete
from parallax.runtime.checkpoint.format.links import (
    HEADER,
    Header,
    RowsWritten,
    find_followers,
    find_strays,
    header_from,
    is_state,
    others,
)
from parallax.runtime.checkpoint.format.sorted_string_table import DamagedCheckpoint, make_damage_error
from parallax.runtime.checkpoint.format.stored_tensors import OWN_KEYS


@dataclass
class Chain:
    """A full checkpoint and its increments, open for reading like a `Bundle`.

    Attributes:
        full: the full one.
        increments: those that follow, in order; each with its header.
        tensors: of the last state of the chain, by key: each as described by the last checkpoint that has all of it. A
            resumed job may have other positions than the job before it, or none, so tensors under OWN_KEYS come from
            the last checkpoint alone.
    """

    full: Bundle
    increments: tuple[tuple[Bundle, Header], ...] = ()
    is_damaged_at: int | None = None
    tensors: dict[str, Tensor] = field(init=False)
    _numbers: dict[tuple[int, str], Array] = field(default_factory=dict)
    _numbers_of: str = ""

    def __post_init__(self) -> None:
        bundles = (self.full, *(bundle for bundle, _ in self.increments))
        tensor_by_key = {k: t for one in bundles for k, t in one.tensors.items() if not k.startswith(OWN_KEYS)}
        own = {k: t for k, t in bundles[-1].tensors.items() if k.startswith(OWN_KEYS) and is_state(k)}
        self.tensors = tensor_by_key | own

    @property
    def prefix(self) -> str:
        """The last checkpoint's name."""
        return self.increments[-1][0].prefix if self.increments else self.full.prefix

    @property
    def header(self) -> Header | None:
        """The last checkpoint's header; None without one."""
        return self.increments[-1][1] if self.increments else header_of(self.full)

    @property
    def damaged_prefix(self) -> str:
        """The name of the checkpoint that was being read last."""
        return self.full.prefix if self.is_damaged_at is None else self.increments[self.is_damaged_at][0].prefix

    def ranges(self, key: str, first: int, rows: int, row_bytes: int, chunk_bytes: int) -> list[tuple[int, int]]:
        """Same as `Bundle.ranges`, for the last checkpoint that has all rows."""
        return self._begin(key)[1].ranges(key, first, rows, row_bytes, chunk_bytes)

    def read(self, key: str, start: tuple[int, ...], shape: tuple[int, ...]) -> Array:
        """Reads the box from `start` of `shape`, as of the last checkpoint of the chain.

        Raises:
            DamagedCheckpoint: as `Bundle.read`; the chain's attribute `is_damaged_at` is the number of the damaged
                increment, or None for the full checkpoint.
        """
        begin, bundle = self._begin(key)
        self.is_damaged_at = begin - 1 if begin else None
        values = bundle.read(key, start, shape)
        for number, (one, header) in enumerate(self.increments[begin:], begin):
            self.is_damaged_at = number
            for table in header.tables:
                if table.key == key:
                    values = self._overlay(values, number, one, table, start, shape)
        return values

    def _begin(self, key: str) -> tuple[int, Bundle]:
        """The last checkpoint that has all of a tensor, and the number of the increment after it."""
        for number in range(len(self.increments), 0, -1):
            bundle, header = self.increments[number - 1]
            if key in bundle.tensors and all(table.key != key for table in header.tables):
                return number, bundle
        return 0, self.full

    def _overlay(
        self,
        below: Any,
        number: int,
        bundle: Bundle,
        table: RowsWritten,
        start: tuple[int, ...],
        shape: tuple[int, ...],
    ) -> Any:
        """Overwrites a box with the rows of one increment."""
        rows, stored = self._row_numbers(number, bundle, table), bundle.tensors[table.values].shape
        low, high = np.searchsorted(rows, [start[0], start[0] + shape[0]])
        columns = [
            (max(a, b), min(a + n, b + m))
            for a, n, b, m in zip(start[1:], shape[1:], table.start, stored[1:], strict=True)
        ]
        if low == high or any(a >= b for a, b in columns):
            return below
        box = tuple(a - s for (a, _), s in zip(columns, table.start, strict=True))
        values = bundle.read(table.values, (int(low), *box), (int(high - low), *(b - a for a, b in columns)))
        overlaid = below if below.flags.writeable else below.copy()
        place = (
            rows[low:high] - start[0],
            *(slice(a - s, b - s) for (a, b), s in zip(columns, start[1:], strict=True)),
        )
        overlaid[place] = values
        return overlaid

    def _row_numbers(self, number: int, bundle: Bundle, table: RowsWritten) -> Array:
        """The row numbers of a variable in an increment; cached while that variable is read."""
        if self._numbers_of != table.key:
            self._numbers, self._numbers_of = {}, table.key
        place = (number, table.rows)
        if place not in self._numbers:
            rows = bundle.read(table.rows, (0,), bundle.tensors[table.rows].shape)
            whole = self.full.tensors[table.key].shape
            values = bundle.tensors[table.values]
            if rows.ndim != 1 or values.shape[0] != len(rows) or len(values.shape) != len(whole):
                raise make_damage_error(bundle.prefix, f"it does not have the rows of {table.key} that it lists")
            if len(rows) and (rows[0] < 0 or rows[-1] >= whole[0] or np.any(np.diff(rows) <= 0)):
                raise make_damage_error(bundle.prefix, f"its row numbers of {table.key} are not those of a checkpoint")
            self._numbers[place] = rows
        return self._numbers[place]


class States:
    """The readable states of a folder, the latest first, each with as many increments as possible."""

    def __init__(self, folder: str) -> None:
        self.notes: list[str] = []
        self._folder = folder
        self._chains: Iterator[tuple[str, Chain | DamagedCheckpoint, tuple[str, ...]]] | None = None
        self._now: Chain | None = None
        self._is_shorter = False

    def following(self) -> str | None:
        """Advances to the next state and returns its prefix; None when there are no more."""
        if self._chains is None:
            self._chains = chains(candidates(self._folder))
        while not self._is_shorter:
            prefix, opened, notes = next(self._chains, ("", None, ()))
            self.notes += notes
            if opened is None:
                return None
            if isinstance(opened, Chain):
                self._now = opened
                break
            self.notes.append(f"Skipped {prefix}: {opened}.")
        self._is_shorter = False
        return self.open_chain().prefix

    def open_chain(self) -> Chain:
        """Opens that state.

        Raises:
            CheckpointError: when there is none.
        """
        if self._now is None:
            raise CheckpointError("There is no checkpoint to open.")
        return self._now

    def is_damaged(self, error: DamagedCheckpoint) -> None:
        """Records that this state could not be read: the next one is the state before the damage."""
        if self._now is None:  # only worker 0 reads files
            return
        self.notes.append(f"Skipped {self._now.damaged_prefix}: {error}.")
        at = self._now.is_damaged_at
        self._is_shorter = at is not None
        self._now = None if at is None else Chain(self._now.full, self._now.increments[:at])


def chains(prefixes: Sequence[str]) -> Iterator[tuple[str, Chain | DamagedCheckpoint, tuple[str, ...]]]:
    """Yields for each full checkpoint: its prefix, the chain of all that follows, and notes about it.

    Args:
        prefixes: of full checkpoints of one folder.
    """
    increments, notes = open_increments(posixpath.dirname(prefixes[0])) if prefixes else ({}, [])
    for number, prefix in enumerate(prefixes):
        chain_notes = tuple(notes) if not number else ()
        try:
            whole = Bundle(prefix)
            own = header_of(whole)
        except DamagedCheckpoint as error:
            yield prefix, error, chain_notes
            continue
        following = find_followers(own.id if own else "", {name: header for name, (_, header) in increments.items()})
        yield (
            prefix,
            Chain(whole, tuple(increments[name] for name in following.prefixes)),
            (*chain_notes, *following.notes),
        )


def state_of(prefix: str) -> Chain | Bundle:
    """Opens a checkpoint of any kind for reading.

    Raises:
        DamagedCheckpoint: as `chain_of`.
    """
    return chain_of(prefix) if is_increment(prefix) else Bundle(prefix)


def chain_of(increment: str) -> Chain:
    """Opens the chain that ends with an increment.

    Raises:
        DamagedCheckpoint: when it cannot be read, or a predecessor is missing.
    """
    folder = posixpath.dirname(increment)
    pattern = re.compile(re.escape(posixpath.join(folder, "")) + r".+\.index")
    others = (path.removesuffix(".index") for path in tf.io.gfile.glob(posixpath.join(folder, "*.index")))
    wholes = [p for p in others if pattern.fullmatch(f"{p}.index") and not is_increment(p)]
    for _, chain, _ in chains(sorted(wholes)):
        names = [bundle.prefix for bundle, _ in chain.increments] if isinstance(chain, Chain) else []
        if isinstance(chain, Chain) and increment in names:
            return Chain(chain.full, chain.increments[: names.index(increment) + 1])
    raise make_damage_error(f"{increment}.index", "a checkpoint that it follows does not exist")


def open_increments(folder: str) -> tuple[dict[str, tuple[Bundle, Header]], list[str]]:
    """Opens the readable increments of a folder, with their headers; also returns messages about the others."""
    opened, notes = {}, []
    for prefix in increments_in(folder):
        try:
            bundle = Bundle(prefix)
            header = header_of(bundle)
            if header is None:
                raise make_damage_error(f"{prefix}.index", "it does not say which checkpoint it follows")
            opened[prefix] = (bundle, header)
        except DamagedCheckpoint as error:
            notes.append(f"Skipped {prefix}: {error}.")
    return opened, notes


def increments_in(folder: str) -> list[str]:
    """The prefixes of the increments in a folder, by step."""
    paths = (path.removesuffix(".index") for path in tf.io.gfile.glob(posixpath.join(folder, f"{INCREMENT}-*.index")))
    return sorted((prefix for prefix in paths if is_increment(prefix)), key=lambda prefix: (len(prefix), prefix))


def is_increment(prefix: str) -> bool:
    """Whether a checkpoint has the name of an increment."""
    return re.fullmatch(rf"{INCREMENT}-\d+", posixpath.basename(prefix)) is not None


def header_of(bundle: Bundle) -> Header | None:
    """Reads the header of a checkpoint; None without one.

    Raises:
        DamagedCheckpoint: when it is corrupted.
    """
    if HEADER not in bundle.tensors:
        return None
    try:
        return header_from(bundle.read(HEADER, (), ()).item().decode())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise make_damage_error(f"{bundle.prefix}.index", f"its metadata has {error!r}") from error


def delete_strays(folder: str, wholes: Sequence[str]) -> list[str]:
    """Deletes unusable increments: they cannot be read, or their full checkpoint is gone.

    Args:
        folder: of the increments.
        wholes: prefixes of the full checkpoints.

    Returns:
        Their prefixes.
    """
    if not increments_in(folder):
        return []
    headers = [header_of(Bundle(prefix)) for prefix in wholes if tf.io.gfile.exists(f"{prefix}.index")]
    return _delete(folder, lambda found: find_strays([one.id for one in headers if one], found))


def delete_others(folder: str, header: Header) -> list[str]:
    """Deletes increments that a new one does not follow, so that each checkpoint has one successor; returns them."""
    return _delete(folder, lambda found: others(header, found))


def _delete(folder: str, chosen: Callable[[dict[str, Header]], list[str]]) -> list[str]:
    """Deletes increments that cannot be read, and selected ones."""
    increments, _ = open_increments(folder)
    unread = [prefix for prefix in increments_in(folder) if prefix not in increments]
    deleted = [*unread, *chosen({prefix: header for prefix, (_, header) in increments.items()})]
    for prefix in deleted:
        delete(prefix)
    return deleted
