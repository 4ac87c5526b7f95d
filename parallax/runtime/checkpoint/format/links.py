"""Links increments to the full checkpoint they extend: the record in each checkpoint, and the resulting chains.

Every checkpoint of a job that writes increments has its own random id. An increment names the id of its predecessor and
that of the full checkpoint at the start of its chain. So files that an earlier run left in a folder, at whatever step,
are never mistaken for a part of a chain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from parallax.runtime.checkpoint.format.stored_tensors import OWN_KEYS

HEADER = f"{OWN_KEYS}checkpoint"
"""The key of a checkpoint's header."""
ROWS, VALUES = f"{OWN_KEYS}rows/", f"{OWN_KEYS}values/"
"""Prefixes of the keys of an increment's row numbers, and of the values of these rows."""
_ID = re.compile(r"[0-9a-f]{32}")


def is_state(key: str) -> bool:
    """Whether a tensor is a part of the state, rather than of the storage of a chain."""
    return key != HEADER and not key.startswith((ROWS, VALUES))


@dataclass(frozen=True, slots=True)
class RowsWritten:
    """Rows of one variable in an increment.

    Attributes:
        key: the variable's key in a full checkpoint.
        rows: key of the row numbers in the full variable, `[k]`, ascending.
        values: key of the values of these rows, `[k, ...]`.
        start: start of these rows in the dimensions after the first.
    """

    key: str
    rows: str
    values: str
    start: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a checkpoint.

    Attributes:
        id: its own.
        base: that of the full checkpoint at the start of the chain; empty for a full one.
        before: that of the previous checkpoint in the chain; empty for a full one.
        step: its global step.
        number: the number of increments in the chain, including this one; 0 for a full one.
        tables: of an increment, the variables of which it has some rows; it has all rows of the others.
    """

    id: str
    base: str = ""
    before: str = ""
    step: int = 0
    number: int = 0
    tables: tuple[RowsWritten, ...] = ()

    def to_text(self) -> str:
        """Formats it as one line, which `header_from` reads."""
        return json.dumps(asdict(self))


def header_from(text: str) -> Header:
    """Parses the output of `Header.to_text`.

    Raises:
        ValueError, KeyError, TypeError: when it is something else.
    """
    raw = json.loads(text)
    tables = tuple(RowsWritten(**{**one, "start": tuple(map(int, one["start"]))}) for one in raw.pop("tables"))
    header = Header(**raw, tables=tables)
    if not all(_ID.fullmatch(one) for one in (header.id, *filter(None, (header.base, header.before)))):
        raise ValueError("ids that are none")
    return header


@dataclass(frozen=True, slots=True)
class Followers:
    """The increments that follow a full checkpoint.

    Attributes:
        prefixes: of them, in order.
        notes: why others that begin with this checkpoint are not among them, a sentence each.
    """

    prefixes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def find_followers(base: str, increments: Mapping[str, Header]) -> Followers:
    """Finds the increments that follow a full checkpoint, without a gap.

    Args:
        base: its id.
        increments: prefix -> header, of all readable increments.
    """
    header_by_prefix = {prefix: header for prefix, header in increments.items() if base and header.base == base}
    chain: list[str] = []
    notes: list[str] = []
    last = base
    while True:
        following = sorted(
            prefix for prefix, header in header_by_prefix.items() if header.before == last and prefix not in chain
        )
        if len(following) > 1:
            notes.append(f"Skipped {' and '.join(following)}: both follow the same checkpoint.")
        if len(following) != 1:
            break
        chain.append(following[0])
        last = header_by_prefix[following[0]].id
    skipped = sorted(
        set(header_by_prefix) - set(chain) - set(following), key=lambda prefix: (header_by_prefix[prefix].step, prefix)
    )
    notes += [f"Skipped {prefix}: an increment that it follows does not exist." for prefix in skipped]
    return Followers(tuple(chain), tuple(notes))


def others(header: Header, increments: Mapping[str, Header]) -> list[str]:
    """The prefixes of a chain's increments that are not predecessors of a new one: a job continued without them.

    Args:
        header: of the new one.
        increments: prefix -> header, of all readable increments.
    """
    by_id = {one.id: one for one in increments.values() if one.base == header.base}
    before: set[str] = set()
    last = header.before
    while last in by_id and last not in before:
        before.add(last)
        last = by_id[last].before
    return sorted(p for p, one in increments.items() if one.base == header.base and one.id not in before)


def find_strays(bases: Sequence[str], increments: Mapping[str, Header]) -> list[str]:
    """The prefixes of increments whose full checkpoint is gone, which makes them unusable.

    Args:
        bases: ids of the existing full checkpoints.
        increments: prefix -> header, of all readable increments.
    """
    return sorted(prefix for prefix, header in increments.items() if header.base not in bases)
