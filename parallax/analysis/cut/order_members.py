"""Orders the members of a forward pass, so that a cut crosses few tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def find_readers(
    variables: Sequence[Collection[str]], inputs: Sequence[Collection[int]], has_batch: Sequence[bool]
) -> dict[int, frozenset[int]]:
    """For each member that depends on variables alone, the members that read the same variables and depend on a batch.

    Its own descendants are left out.

    Args:
        variables: those that a member reads.
        inputs: of each member, which come before it.
        has_batch: whether a member depends on a batch.
    """
    of_variables: dict[int, frozenset[str]] = {}
    for number, names in enumerate(variables):
        if not has_batch[number] and all(one in of_variables for one in inputs[number]):
            found = frozenset(names).union(*(of_variables[one] for one in inputs[number]))
            if found:
                of_variables[number] = found
    takers = _invert(inputs)
    with_batch: dict[str, set[int]] = {}
    for number, names in enumerate(variables):
        for name in names if has_batch[number] else ():
            with_batch.setdefault(name, set()).add(number)
    readers = {}
    for number, found in of_variables.items():
        candidates = set[int]().union(*(with_batch.get(name, set()) for name in found))
        if candidates:
            readers[number] = frozenset(candidates - _find_descendants(number, takers))
    return readers


def order_members(inputs: Sequence[Collection[int]], readers: Mapping[int, Collection[int]]) -> list[int]:
    """The numbers of members in another order in which they can run.

    A member follows as soon as its inputs are there, of several the one from which the end is nearest. One without
    inputs that is computed of variables follows the first member that reads these.

    Args:
        inputs: of each member, which come before it.
        readers: of members that are computed of variables alone (`find_readers`).
    """
    count, takers = len(inputs), _invert(inputs)
    height = [0] * count
    for number in reversed(range(count)):
        height[number] = 1 + max((height[taker] for taker in takers[number]), default=0)
    follows = {number: min(of) for number, of in readers.items() if of and not inputs[number]}
    followers: dict[int, list[int]] = {}
    for number, reader in follows.items():
        followers.setdefault(reader, []).append(number)
    missing = [len(of) for of in inputs]
    order: dict[int, None] = {}

    def run(start: int) -> None:
        waiting = [start]
        while waiting:
            number = waiting.pop()
            if number in order:
                continue
            order[number] = None
            ready = [one for one in followers.get(number, ()) if one not in order]
            for taker in takers[number]:
                missing[taker] -= 1
                ready += [taker] if not missing[taker] and taker not in order else []
            waiting += sorted(ready, key=lambda one: (-height[one], -one))

    for is_last in (False, True):  # members that would wait for each other do so no longer at last
        for number in range(count):
            if number not in order and not missing[number] and (is_last or number not in follows):
                run(number)
    return list(order)


def _invert(inputs: Sequence[Collection[int]]) -> list[list[int]]:
    takers: list[list[int]] = [[] for _ in inputs]
    for number, of in enumerate(inputs):
        for one in of:
            takers[one].append(number)
    return takers


def _find_descendants(number: int, takers: Sequence[Sequence[int]]) -> set[int]:
    found, waiting = set[int](), [number]
    while waiting:
        for taker in takers[waiting.pop()]:
            if taker not in found:
                found.add(taker)
                waiting.append(taker)
    return found
