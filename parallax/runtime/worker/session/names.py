"""Maps the user's names to tensors of the worker's graph, and adds the other feeds that a run needs.

A variable, by whatever name, becomes its full value; the parts of a fused exchange, or of fused all-reduces, that a run
does not need are fed with empty values.

A tensor that contains only some rows cannot be fetched, and the error says so. The collectives of a run are Horovod's
ops, all-reduces, exchanges, contributions to accumulators, and rendezvous by their number: these alone have equal names
on all workers. A run of asynchronous training has none, and is not watched.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property

import numpy as np

from parallax.base.errors import SessionError
from parallax.base.types import Value
from parallax.graph.batches import find_stated_lengths, find_stated_ranks
from parallax.graph.control_flow import is_compared
from parallax.graph.view import VARIABLES, GraphView, node_of
from parallax.report.text import list_first
from parallax.runtime.worker.session.accumulation import AccumulatedGradients, Gather, MicroBatchRun
from parallax.runtime.worker.session.fixed_batch import FixedBatch
from parallax.runtime.worker.session.resolved_run import ResolvedRun, of_stage
from parallax.transform.building.all_to_all import is_collective
from parallax.transform.building.reduce_and_broadcast import QUEUE_EXCHANGES
from parallax.transform.passes.fused_all_reduces import unfuse_view
from parallax.transform.passes.gradients_to_servers import FRONTS_GIVE
from parallax.transform.pipeline import WorkerGraph
from parallax.transform.swap import as_planned, renamed_tensor

_READS = ("Identity", "ReadVariableOp")
_GIVES = ("AccumulatorApplyGradient", "SparseAccumulatorApplyGradient")
_NAMED = 6  # fetches that a message lists


class Names:
    """The names of one worker's graph.

    Args:
        view: the user's graph.
        worker_graph: of this worker.
        renamed: node of the user's graph -> node in this worker's, if it has another name there.
        fixed: the graph that the script built for a fixed batch, where the user's graph is that with an open one.
    """

    def __init__(
        self,
        view: GraphView,
        worker_graph: WorkerGraph,
        renamed: Mapping[str, str] | None = None,
        fixed: GraphView | None = None,
    ) -> None:
        self._view = view
        self._stated_ranks, self._stated_lengths = find_stated_ranks(view), find_stated_lengths(view)
        self._fixed = None if fixed is None else FixedBatch(view, fixed)
        self._renamed = renamed or {}
        self._worker_graph = worker_graph
        self._stages = worker_graph.stages
        self._worker_view = unfuse_view(worker_graph.graph_def if self._stages is None else self._stages.whole)
        self._joined = frozenset(member for one in worker_graph.fused for member in one.members)
        self._resolved: dict[tuple[tuple[str, ...], frozenset[str], Gather | None], ResolvedRun] = {}
        self._kept: AccumulatedGradients | None = None
        self._sources: dict[tuple[tuple[str, ...], frozenset[str]], frozenset[str]] = {}

    @property
    def run_view(self) -> GraphView:
        """The graph that this worker runs; for a model in stages, the graph of all of them."""
        return self._worker_view

    def here(self, name: str) -> str:
        """The name of the user's node or tensor in this worker's graph."""
        return renamed_tensor(name, self._renamed)

    def has(self, name: str) -> bool:
        """Whether a tensor or operation is in the graph that was passed to parallel_run."""
        return node_of(name) in self._view.nodes

    def is_saved_path(self, name: str) -> bool:
        """Whether a tensor is a tf.train.Saver's fetch: the path that it saves to."""
        node = node_of(name)
        writers = {self._view.op(n) for n in self._view.controls(node)}
        return self._view.op(node) == "Identity" and bool(writers & {"SaveV2", "MergeV2Checkpoints"})

    def accumulated_by(self, names: tuple[str, ...], fed: Iterable[str]) -> frozenset[str]:
        """The gradient sources that a run of `names` trains with; none if every batch makes an update.

        Raises:
            SessionError: tensors that depend on gradients are fetched, and no update.
        """
        if not self._worker_graph.accumulations:
            return frozenset()
        key = (names, frozenset(fed))
        if key not in self._sources:
            cut_off = self._find_fed_tensors(key[1])
            nodes = {node_of(t) for t in map(self._worker_name, names) if t not in cut_off}
            runs = self._worker_view.ancestors(nodes, cut_off)
            self._sources[key] = self._accumulated_gradients().of(runs)
            if not self._sources[key] and self._accumulated_gradients().sources_in(runs):
                raise SessionError(
                    f"With accumulate_steps={self._worker_graph.accumulate_steps}, values computed from gradients "
                    f"exist only in a run that makes an update, but {fetch_text(names, ())} was fetched without one. "
                    "Fetch it together with the train_op: it is None in every run but the one that updates."
                )
        return self._sources[key]

    def micro_batch_feeds(self, sources: frozenset[str], run: MicroBatchRun | None) -> dict[str, Value]:
        """Additional feeds of a run of one micro-batch of a step.

        Args:
            sources: the gradient sources that it trains with.
            run: the micro-batch; None if the step is not split.
        """
        share = self._worker_graph.micro_batch_weight
        if run is None or not share:
            return {}
        keepings = [self._accumulated_gradients().keepings[source] for source in sources] if run.count == 1 else []
        nothing = {tensor: np.zeros(shape, dtype) for one in keepings for tensor, shape, dtype in one.nothing}
        return {share: np.asarray(run.share, np.float64), **nothing}

    def resolve(self, names: tuple[str, ...], fed: Iterable[str], gather: Gather | None = None) -> ResolvedRun:
        """Resolves the tensors to run and to feed for `names` when the tensors `fed` are fed.

        Args:
            names: of the user's graph.
            fed: of the user's graph.
            gather: for a run that accumulates gradients for a later update.
        """
        key = (names, frozenset(fed), gather)
        if key not in self._resolved:
            self._resolved[key] = self._resolve(*key)
        return self._resolved[key]

    def _resolve(self, names: tuple[str, ...], fed: frozenset[str], gather: Gather | None) -> ResolvedRun:
        for name in sorted(fed):
            self._check_feed(name)
        tensors = [self._worker_name(name) for name in names]
        feeds = {name: self.here(name) for name in sorted(fed)}
        cut_off = self._find_fed_tensors(fed)
        had, needed_nodes = [True] * len(names), {node_of(name) for name in names if name not in fed}
        if gather is not None:
            accumulated = self._accumulated_gradients()
            runs = self._worker_view.ancestors({node_of(t) for t in tensors if t not in cut_off}, cut_off)
            acting = accumulated.acting(runs) if gather.sources else {}
            replaced = [t if t in cut_off else accumulated.without_update(t, gather) for t in tensors]
            of_user = [n if t == own else t for n, t, own in zip(names, replaced, tensors, strict=True)]
            needed_nodes = {node_of(t) for t in of_user if t is not None and t not in fed and self.has(t)}
            had, tensors = (
                [tensor is not None for tensor in replaced],
                [tensor for tensor in replaced if tensor is not None],
            )
            tensors += [op for op in dict.fromkeys([*accumulated.ops(gather), *sorted(acting)]) if op not in tensors]
            needed_nodes |= {node_of(source) for source in gather.sources} | set(acting.values())
        needed = self._view.ancestors(needed_nodes, self._with_substitutes(fed))
        idle = [cut for cut in self._worker_graph.cuts if not needed & set(cut.needed_by)]
        stops = cut_off | {cut.tensor for cut in idle}  # a fed cut runs none of its ancestors
        runs = self._worker_view.ancestors({node_of(t) for t in tensors if t not in cut_off}, stops)
        unread = {} if self._fixed is None else self._fixed.find_unread_sources(needed_nodes, fed)
        unread = {here: value for name, value in unread.items() if node_of(here := self.here(name)) in runs}
        if unread:
            runs = self._worker_view.ancestors({node_of(t) for t in tensors if t not in cut_off}, stops | unread.keys())
        self._check_runs(names, runs)
        tensors_read = {tensor for node in runs for tensor in self._worker_view.inputs(node)}
        empty = {cut.tensor: np.zeros(cut.shape, cut.dtype) for cut in idle if cut.tensor in tensors_read}
        empty |= self._parts_not_needed(runs) | unread
        led = {a: b for a, b in feeds.items() if a != b}
        full = tuple(one for one in self._worker_graph.full if one.batch in cut_off)
        copies = {} if self._fixed is None else {name: self._fixed.substitutes.get(name, ()) for name in sorted(fed)}
        copies = {name: tuple(map(self.here, others)) for name, others in copies.items() if others}
        ranks = {name: rank for name, rank in self._stated_ranks.items() if name in fed}
        collectives = self._digest(runs)
        lengths = {name: n for name, n in self._stated_lengths.items() if name in fed and collectives}
        resolved = ResolvedRun(tuple(tensors), empty, collectives, led, tuple(had), full, copies, ranks, lengths)
        return resolved if self._stages is None else of_stage(resolved, self._stages, runs, feeds)

    def _with_substitutes(self, fed: Iterable[str]) -> frozenset[str]:
        """Tensors of the user's graph, with those that some ops read in their place."""
        substitutes = {} if self._fixed is None else self._fixed.substitutes
        return frozenset(tensor for name in fed for tensor in (name, *substitutes.get(name, ())))

    def _find_fed_tensors(self, fed: Iterable[str]) -> frozenset[str]:
        """The tensors of this worker's graph that are fed."""
        return frozenset(map(self.here, self._with_substitutes(fed)))

    def _parts_not_needed(self, runs: set[str]) -> dict[str, Value]:
        """The unneeded parts of fused messages of which a run needs only some members."""
        empty_parts: dict[str, Value] = {}
        for message in self._worker_graph.fused:
            if not runs.isdisjoint(message.members):
                pairs = zip(message.members, message.parts, strict=True)
                empty_parts.update({part: np.zeros(0, message.dtype) for member, part in pairs if member not in runs})
        return empty_parts

    def for_all(self, names: Iterable[str], fed: Iterable[str]) -> dict[str, list[str]]:
        """For each fetch the points where workers synchronize; only one of several fetches with the same points."""
        users = {self.here(own): own for own in self._view.nodes}
        cut_off = self._find_fed_tensors(fed)
        name_by_nodes: dict[frozenset[str], str] = {}
        for name in names:
            tensor = self._worker_name(name)
            runs = self._worker_view.ancestors(() if tensor in cut_off else (node_of(tensor),), cut_off)
            places = {rendezvous: node for node in sorted(runs) if (rendezvous := self._name_rendezvous(node))}
            digests = {hashlib.sha256(m.encode()).hexdigest()[:8]: node for m, node in places.items()}
            name_by_nodes.setdefault(
                frozenset(f"{d} {self._find_user_op(node, users)}" for d, node in digests.items()), name
            )
        return {name: sorted(places) for places, name in name_by_nodes.items() if places}

    def _find_user_op(self, node: str, users: Mapping[str, str]) -> str:
        """The nearest ancestor of a node among the user's ops; empty if there is none."""
        waiting, seen = [node], {node}
        for one in waiting:
            if one in users and one != node:
                return users[one]
            needed = dict.fromkeys(node_of(t) for t in self._worker_view.inputs(one))
            waiting += [n for n in needed if n not in seen]
            seen.update(needed)
        return ""

    @cached_property
    def has_collectives(self) -> bool:
        """Whether steps of this worker have collectives; asynchronous ones have none, even if full tables are read."""
        has_any = self._stages is not None or any(map(self._name_rendezvous, self._worker_view.nodes))
        return self._worker_graph.synchronous and has_any

    def has_collective_among(self, nodes: Iterable[str]) -> bool:
        """Whether any of some nodes of this worker's graph is a collective."""
        if self._stages is not None and self._stages.within(set(nodes)):
            return True
        return any(map(self._name_rendezvous, nodes))

    def _accumulated_gradients(self) -> AccumulatedGradients:
        if self._kept is None:
            self._kept = AccumulatedGradients(self._view, self._worker_view, self._worker_graph, self.here)
        return self._kept

    def _check_runs(self, names: tuple[str, ...], runs: set[str]) -> None:
        for node, why in self._worker_graph.refused.items():
            if self.here(node) in runs:
                raise SessionError(
                    f"{fetch_text(names, ())} cannot be fetched: it needs {self._view.op(node)} {node!r}, which takes "
                    f"tensors of the global batch. {why}"
                )

    def _check_feed(self, name: str) -> None:
        is_whole = name in self._worker_graph.full_tensors and self._view.op(node_of(name)) in _READS
        if is_whole or name in self._worker_graph.sharded_tensors or node_of(name) in self._worker_graph.tables:
            raise SessionError(
                f"{name!r} cannot be fed: its rows are sharded over the workers. Feed a placeholder, and assign the "
                "variable from it."
            )

        if self._fixed is not None and (made := self._fixed.find_made_from(name)):
            raise SessionError(
                f"{name!r} cannot be fed: {made!r} is computed from it, and is as long as each worker's batch, which "
                f"the graph fixes. Feed {made!r}, or build the graph with an open batch dimension (None)."
            )
        if is_compared(self._view.nodes[node_of(name)]):
            raise SessionError(
                f"{name!r} cannot be fed: a conditional compares it with another constant, and the graph keeps only "
                "the branch that is taken. Use tf.placeholder_with_default in its place."
            )
        if self._stages is not None and self.here(name) in self._stages.packed:
            raise SessionError(
                f"A feed must not be a small tensor that stages of the model send each other, and {name!r} is one. "
                "Feed its inputs instead, or cut the model elsewhere."
            )

    def _digest(self, runs: set[str]) -> str:
        collectives = sorted({self._name_rendezvous(n) for n in runs} - {""})
        return hashlib.sha256("\n".join(collectives).encode()).hexdigest()[:16] if collectives else ""

    def _name_rendezvous(self, node: str) -> str:
        """The point where workers synchronize at a node, by a name common to all; empty if they do not."""
        op = self._worker_view.op(node)
        planned = as_planned(node)
        if planned.startswith(QUEUE_EXCHANGES):
            return "/".join(planned.split("/")[:3])
        gives = op in _GIVES and not planned.startswith(FRONTS_GIVE)
        meets = is_collective(op) or node in self._joined
        return node if meets or gives else ""

    def _worker_name(self, name: str) -> str:
        whole = self._worker_graph.full_tensors
        while (
            name not in whole
            and name in self._worker_graph.sharded_tensors
            and self._view.op(node_of(name)) == "Identity"
        ):
            name = self._view.inputs(node_of(name))[0]
        node = node_of(name)
        if name in whole:
            return whole[name]
        if ":" in name and self._view.op(node) in VARIABLES:
            nodes = [edge.node for edge in self._view.consumers(name) if self._view.op(edge.node) in _READS]
            # A read that comes after a step would run it.
            reads = [f"{one}:0" for one in sorted(nodes, key=lambda one: bool(self._view.controls(one)))]
            read = next((r for r in reads if r in whole or node not in self._worker_graph.tables), name)
            return whole.get(read) or self.here(read)
        if name in self._worker_graph.sharded_tensors:
            raise SessionError(
                f"{name!r} cannot be fetched: its rows are sharded over the workers. Fetch the variable itself."
            )
        return self.here(name)


def fetch_text(names: Iterable[str], hook_names: Iterable[str]) -> str:
    """The fetches of one run, for messages."""
    texts = [list_first(tuple(names), _NAMED)]
    if hook_names := tuple(hook_names):
        texts.append(f"for hooks {list_first(hook_names, _NAMED)}")
    return "; ".join(text for text in texts if text)
