"""Which graphs are trained with which variables and routes: one list, in one order, for all ranks and for pytest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from parallax.plans.half_precision import WIRE_DTYPES
from tests.equality import gradient_models, models, program_models, update_models

ROUTES = ("alltoall", "allgather", "allreduce")
SERVER_ROUTES = ("ps", "hybrid ps")
"""With servers: all variables there, or those looked up by row alone."""
OWNER_ROUTES = ("unequal owners", "unequal by host")
"""Rows go to owners with unequal shares; on several hosts, whose workers merge what they ask for."""
FRONT_ROUTES = ("ps by fronts", "ps by fronts as bfloat16")
"""Every worker as if on a host of its own: each server is asked by one of them for all."""
WIRE_MODELS = ("Adagrad, clipped, resource", "sampled softmax, resource")
"""Trained with half precision on the wire; the second, some rows of which are all-reduced, by alltoall alone."""
MOST_KEPT = 3
"""Of at most so many batches gradients are kept before an update."""
KEPT_ROUTES = ("alltoall over 3", "allgather over 2", "allreduce over 3", "unequal by host over 2")
NEVER_KEPT = (
    "chained",
    "gradient in a branch",
    "sampled softmax",
    "nce",
    *gradient_models.OF_GRADIENTS,
    *program_models.KEEP_THEIRS,
)
OF_EACH_BATCH = (
    "bags, clipped",
    "bags and rows",
    "unique",
    "masked",
    "divide by mean of some",
    "renormalised",
    "translation",
    "two domains",
)
"""Begins the names of what a batch gives no part of the mean over all batches of an update: each has its own mean."""
"""A gradient of the first is computed after another's update; the next two draw a sample for every batch; the others
need a gradient of all batches within each, or keep gradients themselves."""
IN_SHORT = (
    "Adam, clipped, resource, ps by fronts as bfloat16",
    "chained, resource, ps by fronts",
    "Adam, clipped, resource, alltoall over 3",
    "Momentum, clipped, resource, allgather over 2",
    "Ftrl, clipped, resource, allreduce over 3",
    "positions, resource, alltoall over 3",
    "positions, mixed, resource, allgather over 2",
    "bags, clipped, resource, alltoall over 3",
    "bags, clipped, reference, unequal by host over 2",
    "partitioned, mod, resource, alltoall over 3",
    "samples in parts, resource, allgather over 2",
    "samples in parts, resource, ps over 3",
    "clip rows, resource, allreduce over 3",
    "sorted rows, resource, allgather over 2",
    "unique, buckets, resource, allgather over 2",
    "alternating, same, resource, alltoall over 3",
    "several tables, resource, alltoall over 3",
    "Adam, clipped, resource, ps over 3",
    "positions, resource, hybrid ps over 2",
    "Adam, clipped, resource, ps by fronts over 2",
)
"""Of fronts, and of kept gradients each kind of piece, each way, and what no rule takes."""
KEPT_SERVER_ROUTES = ("ps over 3", "hybrid ps over 2")
KEPT_FRONT_ROUTES = ("ps by fronts over 2",)
PLAIN_ROUTES = (
    "bags, clipped, reference, alltoall",
    "tied, resource, alltoall",
    "whole regulariser, resource, alltoall",
    "conditional, resource, alltoall",
    "sampled softmax, resource, alltoall",
    "partitioned, div, resource, alltoall",
    "function, resource, alltoall",
    "sorted rows, resource, alltoall",
)
"""Of pairs too: which routes their variables have is a test of its own."""
IN_JOBS = (
    "moving averages",
    "positions, mixed",
    "chained",
    "sampled softmax",
    "partitioned, mod",
    "if all finite",
    "sharpness-aware",
    "conditional",
)
"""The graphs that a job of the test command trains: each exchange and order of reads and writes; `-m slow` has all."""
BOTH_WAYS_IN_JOBS = ("sampled softmax",)
"""Trained with servers and without, for its several exchanges; of the others one way, by turns."""
KEPT_IN_JOBS = (
    "Adam, clipped, resource, alltoall over 3",
    "bags, clipped, reference, unequal by host over 2",
    "positions, resource, hybrid ps over 2",
)
"""The same of kept gradients."""
OWNED_OPTIMIZERS = ("Adagrad", "Adam")
OWNED_MODELS = (
    "several tables",
    "bags, clipped",
    "partitioned, mod",
    "divide by max",
    "read of the average",
    "chained",
)


class Case(NamedTuple):
    """A graph to train: how it is built, with resource or reference variables, and the route asked for."""

    name: str
    build: Callable[[int], Any]
    resource: bool
    route: str

    @property
    def graph(self) -> str:
        """The case without its route: the one process trains it once for all routes."""
        return self.name.rsplit(",", 1)[0] + ", kept" * (self.kept > 1)

    @property
    def kept(self) -> int:
        """Of how many batches gradients are kept for an update."""
        return int(self.route.partition(" over ")[2] or 1)


def cases(section: str, servers: int = 0, workers: int = 2) -> list[Case]:
    """The cases of a section, with or without servers; a variable for which a route is impossible keeps its own.

    A section may end in `without servers`, where the job has some; in `in short`, a few of it; in `in pairs`, of which
    any two of model, route, kind of variable, clipping and numbers of processes meet in some case; in `once`, each
    optimizer by one of these; and in `in jobs`, what of `in pairs` or `in short` a job trains too.
    """
    if section.endswith(" without servers"):
        return cases(section.removesuffix(" without servers"), 0, workers)
    if section.endswith(" in short"):
        return [c for c in cases(section.removesuffix(" in short"), servers) if c.name in IN_SHORT]
    routes = SERVER_ROUTES if servers else ROUTES
    if section == "kept optimizers":
        return [case for case in cases("kept", servers) if case.name.split(",")[0] in models.OPTIMIZERS]
    if section == "kept in jobs":
        return [c for c in cases("kept in short", servers) if c.name in KEPT_IN_JOBS]
    if section == "models in jobs":
        return _models_in_jobs(servers)
    if section in ("optimizers in pairs", "optimizers once"):
        return _optimizers_in_pairs(workers, servers, section.endswith("once"))
    if section == "models in pairs":
        return _models_in_pairs(routes)
    if section.startswith("kept"):
        routes = KEPT_SERVER_ROUTES if servers else KEPT_ROUTES
        routes = KEPT_FRONT_ROUTES if section == "kept by fronts" else routes
        return [c for c in [*_optimizers(routes), *_models(routes)] if c.name.split(",")[0] not in NEVER_KEPT]
    if section in ("owners", "fronts"):
        routes = OWNER_ROUTES if section == "owners" else FRONT_ROUTES
        by_row = [c for c in _optimizers(routes) if c.name.split(",")[0] in OWNED_OPTIMIZERS and c.resource]
        wanted = tuple(f"{model}, {_kind(kind)}" for model in OWNED_MODELS for kind in (True, False))
        return by_row + [c for c in _models(routes) if c.graph in wanted]
    if section == "wire":
        rounded = tuple(f"{route} as {dtype}" for route in routes[: len(ROUTES)] for dtype in WIRE_DTYPES)
        every = [*_optimizers(rounded), *_models([route for route in rounded if route.startswith("alltoall")])]
        return [c for c in every if c.graph in WIRE_MODELS]
    return _optimizers(routes) if section == "optimizers" else _models(routes)


def _optimizers_in_pairs(workers: int, servers: int, is_once: bool) -> list[Case]:
    """Two workers without servers train every optimizer by every route; others each optimizer once, on one of them."""
    every_route = workers == 2 and not is_once
    routes = ROUTES if not servers else SERVER_ROUTES[:1]
    combinations = [(True, route) for route in routes] + ([] if servers else [(False, routes[0])])
    found = []
    for number, optimizer in enumerate(models.OPTIMIZERS):
        one = (number + workers) % len(combinations)
        for turn in range(len(combinations)) if every_route else [one]:
            clip = (number // 2 + turn + servers) % 2 == 1
            found.append(_optimizer(optimizer, clip, *combinations[turn]))
    return found


def _models_in_pairs(routes: Sequence[str]) -> list[Case]:
    """Every model by every route, by one of them, another for the next model, with reference variables."""
    by_model: dict[str, list[Case]] = {}
    for case in _models(routes):
        by_model.setdefault(case.graph.rsplit(", ", 1)[0], []).append(case)
    found = []
    for number, of_model in enumerate(by_model.values()):
        by = list(dict.fromkeys(case.route for case in of_model))
        both = len(by) > 1 and len({case.resource for case in of_model}) == 2
        with_references = by[number % len(by)]
        found += [
            case
            for case in of_model
            if not both or case.resource != (case.route == with_references) or case.name in PLAIN_ROUTES
        ]
    return found


def _models_in_jobs(servers: int) -> list[Case]:
    """Each of some models by one route, another for the next: with resource variables, all that can be on servers."""
    found = []
    for number, model in enumerate(IN_JOBS):
        if number % 2 != (servers > 0) and model not in BOTH_WAYS_IN_JOBS:
            continue
        by = [case for case in _models(SERVER_ROUTES[:1] if servers else ROUTES) if case.graph == f"{model}, resource"]
        found.append(by[number % len(by)])
    return found


def _optimizers(routes: Sequence[str]) -> list[Case]:
    found = []
    for optimizer in models.OPTIMIZERS:
        for clip in (False, True):
            for resource in (True, False):
                for route in routes if resource else routes[:1]:
                    found.append(_optimizer(optimizer, clip, resource, route))
    return found


def _optimizer(optimizer: str, clip: bool, resource: bool, route: str) -> Case:
    name = f"{optimizer}, {'clipped' if clip else 'plain'}, {_kind(resource)}, {route}"
    return Case(name, lambda rows: models.two_lookups(rows, optimizer, clip), resource, route)


def _models(routes: Sequence[str]) -> list[Case]:
    found = []
    for model, build in models.MODELS.items():
        for resource in (True, False) if model != "tape" else (True,):  # a tape does not know reference variables
            found += [Case(f"{model}, {_kind(resource)}, {route}", build, resource, route) for route in routes]
    for model, build in update_models.MODELS.items():
        for resource in (True, False) if model not in update_models.RESOURCE_ONLY else (True,):
            found += [Case(f"{model}, {_kind(resource)}, {route}", build, resource, route) for route in routes]
    for model, build in gradient_models.MODELS.items():
        if model in gradient_models.OF_GRADIENTS[1:] and routes and "ps" in routes[0]:
            continue  # servers refuse their variables, as one of them shows
        by = routes if model in gradient_models.OF_ROWS else routes[:1]
        for resource in (True, False) if model in gradient_models.WITH_REFERENCES else (True,):
            found += [Case(f"{model}, {_kind(resource)}, {route}", build, resource, route) for route in by]
    for model, build in program_models.MODELS.items():
        found += [Case(f"{model}, resource, {route}", build, True, route) for route in routes[:1]]
    return found


def _kind(resource: bool) -> str:
    return "resource" if resource else "reference"
