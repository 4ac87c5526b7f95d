"""Derives from a worker's graph the dependencies between ops within a step, and from one step to the next.

A control-flow v1 loop is one activity, and an op that calls functions is one with everything it calls. Ops of unknown
time remain as activities of zero length where they lie between ops that have run. Dependencies between two steps follow
from the resources at which runs take turns (parallax/transform/passes/turns.py): an op that touches a variable begins
after all ops of the step before that touch it have ended. A value that is passed to a loop under another name is
touched by the loop.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from parallax.analysis.timing.schedule import Activity, StepActivities, step_of_activities
from parallax.graph.control_flow import branches_of
from parallax.graph.view import GraphView
from parallax.transform.passes.turns import keys_of
from parallax.transform.swap import as_planned

DEVICE, LINK, HOST = "device", "link", "host"
"""Resources: the processor, the network between hosts, and communication within the host."""


class ResourceTime(NamedTuple):
    """The time of an activity, on its resource."""

    seconds: float
    resource: str | None


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The order of a step's activities.

    Attributes:
        needs: activity -> its dependencies; in topological order.
        borders: (of a step, of the next step): the second begins when the first is over.
        within: node -> the activity that it is part of, for nodes in loops.
        can_overlap: whether all stateful ops are known, so that steps can overlap.
    """

    needs: Mapping[str, tuple[str, ...]]
    borders: tuple[tuple[str, str], ...]
    within: Mapping[str, str]
    can_overlap: bool

    def step(self, time_by_activity: Mapping[str, ResourceTime]) -> StepActivities:
        """The activities of a step.

        Args:
            time_by_activity: by activity; all others take no time.
        """
        nothing = ResourceTime(0.0, None)
        activities = [
            Activity(name, *time_by_activity.get(name, nothing), needed) for name, needed in self.needs.items()
        ]
        activities += [Activity(name, *found) for name, found in time_by_activity.items() if name not in self.needs]
        return step_of_activities(activities, self.borders)


def dependencies_of(view: GraphView, ran: Iterable[str]) -> Dependencies:
    """The order of the nodes that a step runs, and of the loops that contain them.

    Args:
        view: the worker's graph.
        ran: nodes of it. Paths lead through other nodes.
    """
    keys = keys_of(view)
    nodes_between = _between(view, {node for node in ran if node in view.nodes}, keys)
    within = {}
    for node, branches in branches_of(view).items():
        loops = [branch.predicate for branch in branches if branch.is_loop]
        if loops and node in nodes_between:
            within[node] = f"{loops[0]}: loop"
    needs: dict[str, dict[str, None]] = {}
    for node in nodes_between:
        activity = within.get(node, node)
        dependencies = (within.get(needed, needed) for needed in view.predecessors(node) if needed in nodes_between)
        needs.setdefault(activity, {}).update(dict.fromkeys(one for one in dependencies if one != activity))
    if any(view.gives_reference(node) for node in nodes_between):
        return Dependencies({name: tuple(found) for name, found in needs.items()}, (), within, False)
    borders = _turns({node: found for node, found in keys.items() if node in nodes_between}, within, needs)
    return Dependencies({name: tuple(found) for name, found in needs.items()}, borders, within, True)


def _turns(
    keys_by_node: Mapping[str, Sequence[str]], within: Mapping[str, str], needs: dict[str, dict[str, None]]
) -> tuple[tuple[str, str], ...]:
    """The borders; adds to `needs` an activity of zero time at both ends of each resource that several touch."""
    touching: dict[str, dict[str, None]] = {}
    for node, keys in keys_by_node.items():
        for key in keys:
            touching.setdefault(key, {})[within.get(node, node)] = None
    keys_by_touching: dict[tuple[str, ...], str] = {}
    for key, found in touching.items():
        keys_by_touching.setdefault(tuple(found), key)
    borders: list[tuple[str, str]] = []
    for activities, key in keys_by_touching.items():
        if len(activities) == 1:
            borders.append((activities[0], activities[0]))
            continue
        begin, end = f"{key}: begin", f"{key}: end"
        needs[begin], needs[end] = {}, dict.fromkeys(activities)
        for activity in activities:
            needs[activity][begin] = None
        borders.append((end, begin))
    return tuple(borders)


def _between(view: GraphView, ran: Set[str], touching: Collection[str]) -> dict[str, None]:
    """The nodes that were run, in topological order, with those on a path to one from another, or from a touching one.

    Args:
        view: the graph.
        ran: the nodes.
        touching: ops that touch a stateful resource.
    """
    order = view.topological_order()
    after: set[str] = set()
    for node in order:
        if node in ran or node in touching or any(needed in after for needed in view.predecessors(node)):
            after.add(node)
    before: set[str] = set()
    for node in reversed(order):
        if node in ran or node in before:
            before.update((node, *view.predecessors(node)))
    return {node: None for node in order if node in after and node in before}


class NodeOwners:
    """Maps ops of a trace to nodes of the graph."""

    def __init__(self, view: GraphView) -> None:
        self._nodes = {as_planned(name): name for name in view.nodes}
        self._calls = {
            as_planned(name)
            for name, node in view.nodes.items()
            if any(value.HasField("func") or value.list.func for value in node.attr.values())
        }
        self._found: dict[str, str | None] = {}

    def of(self, name: str) -> str | None:
        """The node of that name, or the one that calls its function; None for ops that TensorFlow has added."""
        if name not in self._found:
            parts = name.split("/")
            callers = ("/".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
            caller = next((self._nodes[one] for one in callers if one in self._calls), None)
            self._found[name] = self._nodes.get(name, caller)
        return self._found[name]
