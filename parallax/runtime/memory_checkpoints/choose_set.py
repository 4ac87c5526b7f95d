"""Selects the set that a restarted job resumes from, given the parts that each worker's host reports.

A set is complete when every part of it is on a host of the job. Of the complete sets, those of the latest generation
count, and of these the last: a host that was away may have an earlier generation, which is outdated.

One set is always complete when one host is lost, at any instant: each part is on two hosts or, if it is replicated, on
all of them. A host discards the sets before number n only when n is on all hosts, and a generation only when the next
one has its set 0 on all of them (store.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parallax.base.errors import CheckpointError
from parallax.report.text import name_ranks
from parallax.runtime.memory_checkpoints.part_files import COMMON


@dataclass(frozen=True, slots=True)
class PartFound:
    """A part in the memory of a host.

    Attributes:
        generation: as `PartHead.generation`.
        owner: as `PartHead.owner`.
        workers: how many owners there are.
        sets: the readable ones, number -> global step.
    """

    generation: int
    owner: int
    workers: int
    sets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class ChosenSet:
    """The set to resume from.

    Attributes:
        generation, number: identify it.
        step: its global step.
        workers: how many owners there are.
        readers: part -> the worker that reads it; of parts that were on one host alone, the existing ones.
    """

    generation: int
    number: int
    step: int
    workers: int
    readers: Mapping[int, int]


def newest_generation(parts_by_worker: Sequence[Sequence[PartFound]]) -> int:
    """The highest generation that any host has; 0 if there is none."""
    return max((one.generation for parts in parts_by_worker for one in parts), default=0)


def choose_set(parts_by_worker: Sequence[Sequence[PartFound]]) -> ChosenSet | None:
    """Selects the set that the workers resume from; None if the job did not complete its first set.

    Args:
        parts_by_worker: for each worker the parts on its host.

    Raises:
        CheckpointError: there were sets, and none of them is complete.
    """
    for generation in range(newest_generation(parts_by_worker), 0, -1):
        parts: dict[int, dict[int, list[int]]] = {}  # owner -> number -> workers that can read it
        steps: dict[int, int] = {}
        workers = 0
        for reader, of_host in enumerate(parts_by_worker):
            for one in of_host:
                if one.generation != generation:
                    continue
                workers = one.workers
                for number, step in one.sets.items():
                    parts.setdefault(one.owner, {}).setdefault(number, []).append(reader)
                    steps[number] = step
        needed = (COMMON, *range(workers))
        complete = [n for n in steps if all(n in parts.get(owner, {}) for owner in needed)]
        if complete:
            number = max(complete)
            readers = {owner: _one_of(has[number], owner) for owner, has in parts.items() if number in has}
            return ChosenSet(generation, number, steps[number], workers, readers)
        if max(steps, default=0) > 0 or (steps and generation > 1 and not _has_before(parts_by_worker, generation)):
            missing = [owner for owner in range(workers) if owner not in parts]
            raise CheckpointError(
                f"No available host holds the rows of {name_ranks(missing)}: hosts that replicate each other were "
                "lost together. Start the job again; with CheckPointConfig.ckpt_dir it resumes from a folder."
                if missing
                else "The available hosts do not hold all parts of the state of any step. Start the job again."
            )
    return None


def _one_of(readers: Sequence[int], owner: int) -> int:
    """Selects one of the readers, not the same for all parts."""
    return readers[owner % len(readers)]


def _has_before(parts_by_worker: Sequence[Sequence[PartFound]], generation: int) -> bool:
    return any(one.generation < generation for parts in parts_by_worker for one in parts)
