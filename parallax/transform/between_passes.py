"""Checks invariants after each pass, before the next one begins: a violation names the pass, the op and the rule.

After every pass: the changed nodes are in the user's graph, no node has two roles, and no node reads an output of a
node that no longer has outputs. In addition, a pass must have completed its work list (`_LEFT`). Only names are looked
up, so the check always runs; invariants.py checks the finished graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from parallax.base.errors import TransformError
from parallax.graph.control_flow import branches_of
from parallax.graph.view import Edge, node_of
from parallax.plans.rewrites import Rewrites
from parallax.transform.building.editor import Editor

_Broken = tuple[str, str]
"""An op of the user's graph, and the invariant that it violates."""


def check_pass(editor: Editor, rewrites: Rewrites, done: str) -> None:
    """Checks the invariants after a pass.

    Args:
        editor: the graph under change.
        rewrites: the rewrites.
        done: the name of the pass that has just run.

    Raises:
        TransformError: an invariant is violated.
    """
    for node, rule in (*_unsound(editor), *_LEFT.get(done, _check_nothing)(editor, rewrites)):
        raise TransformError(f"After pass {done}, {node!r} must {rule}. This is a fault of Parallax: please report it.")


def _unsound(editor: Editor) -> Iterator[_Broken]:
    view = editor.view
    for edge in (*editor.redirected, *editor.redirected_parts):
        if edge.node not in view.nodes or edge.slot >= len(view.inputs(edge.node)):
            yield edge.node, f"be in the graph with an input {edge.slot}, which was led elsewhere"
    became = [*editor.replaced, *editor.constants, *editor.no_ops]
    for node in (*became, *(node for node, _ in editor.attributes)):
        if node not in view.nodes:
            yield node, "be in the graph, as it was changed"
    removed = set(became)
    if len(removed) < len(became):
        yield next(node for node in became if became.count(node) > 1), "become one thing: constant, identity or no-op"
    for node in editor.no_ops:
        for tensor in view.outputs(node):
            for edge in view.consumers(tensor):
                if edge not in editor.redirected and edge.node not in removed:
                    yield edge.node, f"take what is there, and its input {edge.slot} is {tensor!r} of a removed op"


def _check_led(editor: Editor, edges: Iterable[Edge], what: str) -> Iterator[_Broken]:
    """The edges that have not yet been redirected."""
    for edge in edges:
        if edge not in editor.redirected:
            yield edge.node, f"take {what} as its input {edge.slot}"


def _local_shapes(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    for table in rewrites.tables:
        for member in table.members:
            if not table.servers and (member, "shape") not in editor.attributes:
                yield member, "have the shape of this worker's rows"
    for count in rewrites.counts:
        if count.edge not in (editor.redirected_parts if rewrites.table(count.table).servers else editor.redirected):
            yield count.edge.node, f"take how many rows an owner holds as its input {count.edge.slot}"


def _partitions(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    for table in rewrites.tables:
        for member in table.members if table.servers else ():
            if len(editor.partitions.get(member, ())) != len(table.servers):
                yield member, f"have a partition on each of {len(table.servers)} servers"


def _check_kept(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    for keep in rewrites.accumulated_gradients:
        yield from _check_led(
            editor, (*keep.value_edges, *keep.index_edges), "the gradients of all batches of an update"
        )


def _check_reduced(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    for scale in rewrites.scales:
        yield from _check_led(editor, scale.edges, "scaled gradient rows")
    for feed in rewrites.broadcasts:
        yield from _check_led(editor, feed.edges, "worker 0's value")
    for reduction in rewrites.all_reduces:
        yield from _check_led(editor, () if reduction.table else reduction.edges, "the all-reduced value")


def _check_sliced(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    for cut in rewrites.slices:
        yield from _check_led(editor, () if rewrites.table(cut.table).servers else cut.edges, "the local rows")


def _check_exchanged(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    branches = branches_of(editor.view)
    for lookup in rewrites.lookups:
        if lookup.combines:
            yield from _check_led(editor, (Edge(lookup.node, 0), Edge(lookup.node, lookup.ids_slot)), "the rows pulled")
        elif lookup.node not in editor.replaced:
            yield lookup.node, "be a pull"
        if branches[lookup.node]:
            yield lookup.node, "be outside of conditionals and loops, which not all workers may enter"
    for push in rewrites.pushes:
        if not rewrites.table(push.table).servers:
            yield from _check_led(editor, (*push.values, *push.indices), "the rows pushed")


def _check_collected(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    for collect in rewrites.collects:
        yield from _check_led(editor, (*collect.values, *collect.indices), "the rows of all workers")


def _check_gathered(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    for gather in rewrites.gathers:
        if rewrites.table(gather.table).servers:
            continue
        yield from _check_led(editor, gather.edges, "all rows")
        if gather.tensor not in editor.full_tensors:
            yield node_of(gather.tensor), "have all rows beside it, for whoever fetches it"


def _on_servers(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    for one in rewrites.owned:
        if one.writes and one.node not in editor.no_ops and one.node not in editor.replaced:
            yield one.node, f"write the partitions of {one.table!r} on their servers"


def _check_padded(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    yield from _check_led(editor, [Edge(one.node, 0) for one in rewrites.padded], "the longest row of all workers")


def _check_nothing(editor: Editor, rewrites: Rewrites) -> Iterator[_Broken]:
    yield from ()


_LEFT: dict[str, Callable[[Editor, Rewrites], Iterator[_Broken]]] = {
    "spread_tables": _local_shapes,
    "place_tables": _partitions,
    "keep_gradients": _check_kept,
    "reduce_gradients": _check_reduced,
    "pad_to_longest_row": _check_padded,
    "slice_rows": _check_sliced,
    "exchange_rows": _check_exchanged,
    "collect_rows": _check_collected,
    "gather_rows": _check_gathered,
    "run_on_servers": _on_servers,
}
"""Pass -> a function that lists the work that the pass has left undone."""
