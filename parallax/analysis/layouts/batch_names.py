"""Names each batch by its sources, so that a step which reads only some sources never waits for the others.

Sources that one op combines have the same length, and the layout rules treat them as one batch. A run that reads only
some of these sources takes its share of examples from those sources alone, and checks that their lengths are equal. A
placeholder that the run does not feed, or a queue that it does not read, is left untouched.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from parallax.graph.batches import (
    are_elements,
    are_row_ends,
    batch_by_node,
    batch_of,
    batch_tensors,
    fixed_length,
    marked_nodes,
    sparse_feeds,
)
from parallax.graph.lengths import Length, split_symbol
from parallax.graph.view import Edge, GraphView, node_of
from parallax.plans.layouts import (
    Change,
    Concatenated,
    ExampleNumbers,
    Layout,
    LayoutRewrites,
    PerExample,
    RowEnds,
    ScaledMean,
    Sharded,
)
from parallax.plans.rewrites import Collect, Push, Rewrites
from parallax.plans.uneven_batches import UnevenBatch


def name_batches(view: GraphView, rewrites: Rewrites) -> Rewrites:
    """The rewrites of a script's graph, with each batch named by its sources.

    Args:
        view: the graph, with its batches marked.
        rewrites: from layouts.
    """
    names = _BatchNames(view)
    return replace(
        rewrites,
        layouts=tuple(names.of_layouts(one) for one in rewrites.layouts),
        all_reduces=tuple(replace(one, batch=names.of_tensor(one.tensor, one.batch)) for one in rewrites.all_reduces),
        scatters=tuple(replace(one, batch=names.of_tensor(one.tensor, one.batch)) for one in rewrites.scatters),
        accumulated_gradients=tuple(
            replace(one, batch=names.of_tensor(one.values, one.batch)) for one in rewrites.accumulated_gradients
        ),
        pushes=tuple(replace(one, batch=names.of_rows(one)) for one in rewrites.pushes),
        collects=tuple(replace(one, batch=names.of_rows(one)) for one in rewrites.collects),
        batches=tuple(names.find_batches()),
    )


class _BatchNames:
    """The names of a graph's batches; used names are recorded."""

    def __init__(self, view: GraphView) -> None:
        self._view = view
        self._batches = batch_by_node(view)
        self._sources = _find_sources(view)
        count = Counter(source for found in self._sources.values() for source in found)
        self._rank = {source: (-count[source], place) for place, source in enumerate(view.nodes) if source in count}
        self._named: dict[str, UnevenBatch] = {}

    def find_batches(self) -> list[UnevenBatch]:
        """All batches that were named."""
        return list(self._named.values())

    def at(self, node: str, batch: str) -> str:
        """The name of a batch, by those of its sources from which a node is computed."""
        first = node_of(batch)
        step, found = batch_of(self._view.nodes[first]), self._sources.get(node, frozenset())
        sources = [one for one in found if batch_of(self._view.nodes[one]) == step]
        if are_elements(self._view.nodes[first]) or not sources:
            sources = [first]
        sources.sort(key=lambda source: self._rank[source] if source in self._rank else (0, 0))
        tensors = [tensor for source in sources for tensor in batch_tensors(self._view, source)]
        name = ",".join(tensors)
        examples = fixed_length(self._view.nodes[sources[0]])
        others, has_end = () if examples else tuple(tensors[1:]), are_row_ends(self._view.nodes[sources[0]])
        self._named[name] = UnevenBatch(name, tensors[0], None, others, examples, has_end=has_end)
        return name

    def of_tensor(self, tensor: str, batch: str) -> str:
        """The name of the batch from which a tensor is computed, if any."""
        return self.at(node_of(tensor), batch) if batch else ""

    def of_rows(self, one: Push | Collect) -> str:
        """The name of the batch from which rows are computed."""
        nodes = [edge.node for edge in (*one.values, *one.indices)]
        return next((self.at(node, one.batch) for node in nodes if node in self._batches), "") if one.batch else ""

    def of_layouts(self, layouts: LayoutRewrites) -> LayoutRewrites:
        """Layout changes with all their batches named."""
        return replace(
            layouts,
            changes=tuple(changed for one in layouts.changes for changed in self._of_change(one)),
            means=tuple(self._of_mean(one) for one in layouts.means),
            ranges=tuple(
                replace(one, part=replace(one.part, batch=self.at(one.node, one.part.batch))) for one in layouts.ranges
            ),
            filled=tuple(replace(one, batch=self.at(one.node, one.batch)) for one in layouts.filled),
            shapes=tuple(replace(one, batch=self.at(one.edge.node, one.batch)) for one in layouts.shapes),
            reported=tuple(replace(one, batch=self.of_tensor(one.tensor, one.batch)) for one in layouts.reported),
            sharded={
                tensor: self._of_sharded(node_of(tensor), layout)
                for tensor, layout in layouts.sharded.items()
                if _is_measured(self._view, tensor) or not layout.part.is_even
            },
            concatenated={
                tensor: self._of_concatenated(node_of(tensor), layout)
                for tensor, layout in layouts.concatenated.items()
            },
            ends={tensor: self._of_ends(node_of(tensor), layout) for tensor, layout in layouts.ends.items()},
            fed=tuple(replace(one, batch=self.at(node_of(one.tensor), one.batch)) for one in layouts.fed),
            known_lengths={
                tensor: self._rename_lengths(node_of(tensor), value) for tensor, value in layouts.known_lengths.items()
            },
        )

    def _rename_lengths(self, node: str, value: Length | tuple[Length, ...]) -> Length | tuple[Length, ...]:
        return (
            tuple(self._of_length(node, one) for one in value)
            if isinstance(value, tuple)
            else self._of_length(node, value)
        )

    def _of_length(self, node: str, length: Length) -> Length:
        def rename(symbol: str) -> str:
            return symbol if split_symbol(symbol)[1] is not None else self.at(node, symbol)

        terms = tuple((tuple(map(rename, symbols)), factor) for symbols, factor in length.terms)
        return replace(length, terms=terms)

    def _of_mean(self, mean: ScaledMean) -> ScaledMean:
        dealt = replace(mean.dealt, batch=self.at(mean.node, mean.dealt.batch)) if mean.dealt is not None else None
        return replace(mean, batch=self.at(mean.node, mean.batch), dealt=dealt)

    def _of_change(self, change: Change) -> list[Change]:
        node = node_of(change.tensor)
        before = self._of_layout(node, change.before)
        batch = self.of_tensor(change.tensor, change.batch)
        by_after: dict[Layout, list[Edge]] = {}
        for edge in change.edges:
            by_after.setdefault(self._of_layout(edge.node, change.after), []).append(edge)
        if not by_after:
            by_after[self._of_layout(node, change.after)] = []
        return [
            replace(change, before=before, after=after, edges=tuple(edges), batch=batch)
            for after, edges in by_after.items()
        ]

    def _of_layout(self, node: str, layout: Layout) -> Layout:
        if isinstance(layout, Concatenated):
            return self._of_concatenated(node, layout)
        if isinstance(layout, RowEnds):
            return self._of_ends(node, layout)
        if isinstance(layout, ExampleNumbers):
            return replace(layout, part=replace(layout.part, batch=self.at(layout.of, layout.part.batch)))
        if isinstance(layout, Sharded | PerExample):
            return replace(layout, part=replace(layout.part, batch=self.at(node, layout.part.batch)))
        return layout

    def _of_concatenated(self, node: str, layout: Concatenated) -> Concatenated:
        return Concatenated(tuple((length, self._of_layout(node, piece)) for length, piece in layout.pieces))

    def _of_ends(self, node: str, layout: RowEnds) -> RowEnds:
        return RowEnds(self.at(node, layout.rows), self.at(node, layout.elements))

    def _of_sharded(self, node: str, layout: Sharded) -> Sharded:
        return replace(layout, part=replace(layout.part, batch=self.at(node, layout.part.batch)))


def _find_sources(view: GraphView) -> dict[str, frozenset[str]]:
    """Node -> the sources of the batches from which it is computed."""
    sparse = sparse_feeds(view)  # their lengths are the numbers of entries
    marked = [node for node in marked_nodes(view) if batch_of(view.nodes[node]) and node not in sparse]
    sources = [node for node in marked if not are_elements(view.nodes[node]) and not are_row_ends(view.nodes[node])]
    sources_by_node: dict[str, frozenset[str]] = {node: frozenset((node,)) for node in sources}
    for node in view.topological_order():
        if node not in sources_by_node:
            input_sources = {sources_by_node[one] for one in map(node_of, view.inputs(node)) if one in sources_by_node}
            if input_sources:
                sources_by_node[node] = (
                    next(iter(input_sources)) if len(input_sources) == 1 else frozenset().union(*input_sources)
                )
    return sources_by_node


def _is_measured(view: GraphView, tensor: str) -> bool:
    return any(view.op(edge.node) in ("Shape", "ShapeN", "Size") for edge in view.consumers(tensor))
