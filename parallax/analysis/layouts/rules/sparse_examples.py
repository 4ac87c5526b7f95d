"""Layout rules of ops that make sparse tensors of examples, or read them: indices begin with the example's."""

from __future__ import annotations

from parallax.analysis.layouts.rules.elementwise import align
from parallax.analysis.layouts.rules.facts import LENGTHS, REPLICATED, Fact
from parallax.analysis.layouts.rules.indexed_ops import find_first_numbers
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.base.errors import GraphError
from parallax.graph.batches import sparse_feeds
from parallax.graph.lengths import ONE, Length
from parallax.plans.layouts import DISTINCT, UNEVEN, OffsetRange, Sharded, ShardedAxis

_ADJACENT = (
    "SparseToDense {node!r} makes a dense matrix of the sparse feed {of!r}, whose rows and columns are examples: on "
    "each worker it has columns for that worker's own examples only. Leave it sparse, and multiply it by "
    "tf.sparse.sparse_dense_matmul."
)


def parse_examples(step: StepWalk, node: str) -> list[Fact] | None:
    """ParseExample: dense features by example; for sparse ones indices, which begin with the example's, and values."""
    texts, *others = step.inputs(node)
    attributes = step.view.nodes[node].attr
    count = int(attributes["num_sparse" if step.view.op(node).endswith("V2") else "Nsparse"].i)
    is_ragged = bool(attributes["ragged_value_types"].list.type)
    if texts.axis != 0 or texts.part is None or texts.part != ShardedAxis(texts.part.batch) or is_ragged or step.prefix:
        return None
    if not all(fact.is_same for fact in others):
        return None
    facts = [step.fact(tensor, Sharded(0, texts.part)) for tensor in step.view.outputs(node)]
    for feature in range(count):
        for place, fact in enumerate(_make_sparse_tensor(step, node, texts.part, feature, count)):
            facts[feature + place * count] = fact
    return facts


def split_texts(step: StepWalk, node: str) -> list[Fact] | None:
    """StringSplit: a sparse tensor of the words of each text."""
    texts, separator = step.inputs(node)
    if texts.axis != 0 or texts.part is None or texts.part.blocks > 1 or not separator.is_same or step.prefix:
        return None
    return _make_sparse_tensor(step, node, texts.part)


def cross_features(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseCross: a sparse tensor of the combinations of each example's features, sparse and dense."""
    facts, attributes = step.inputs(node), step.view.nodes[node].attr
    count, dense = int(attributes["N"].i), len(attributes["dense_types"].list.type)
    examples = {facts[slot].part for slot in range(3 * count, 3 * count + dense)}
    examples |= {_take_sparse_input(step, node, (slot, slot + count, slot + 2 * count)) for slot in range(count)}
    example = examples.pop()
    if examples or example is None or example != ShardedAxis(example.batch) or step.prefix:
        return None
    step.replicate(node, range(3 * count + dense, len(facts)))
    return _make_sparse_tensor(step, node, example)


def decode_labels(step: StepWalk, node: str) -> list[Fact] | None:
    """CTCGreedyDecoder and CTCBeamSearchDecoder: sparse tensors of each example's labels, and their likelihoods."""
    inputs, lengths = step.inputs(node)
    part, attributes = inputs.part, step.view.nodes[node].attr
    count = int(attributes["top_paths"].i) if "top_paths" in attributes else 1
    if inputs.axis != 1 or part is None or part != ShardedAxis(part.batch) or step.prefix:
        return None
    align(step, node, 1, lengths, 0, part)
    facts = [step.fact(tensor, Sharded(0, part)) for tensor in step.view.outputs(node)]
    for path in range(count):
        facts[path : 3 * count : count] = _make_sparse_tensor(step, node, part, path, count)
    return facts


def label_losses(step: StepWalk, node: str) -> list[Fact] | None:
    """CTCLoss: of each example, whose labels are a sparse tensor's; and the gradient."""
    inputs, _, _, lengths = step.inputs(node)
    if inputs.axis != 1 or inputs.part is None or _take_sparse_input(step, node, (1, 2), inputs.part) != inputs.part:
        return None
    align(step, node, 3, lengths, 0, inputs.part)
    loss, gradient = step.view.outputs(node)
    return [step.fact(loss, Sharded(0, inputs.part)), step.fact(gradient, inputs.layout, inputs.dims)]


def scatter_sparse_values(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseToDense, into rows of the examples with which indices begin.

    A worker has as many columns of a fed tensor as the longest example of the global batch.
    """
    places, shape, values, default = step.inputs(node)
    dims, part = shape.values(), places.part
    example = step.part_of(dims[0]) if dims else None
    if part is None or example is None or dims is None or values.part != part:
        return None
    numbers = find_first_numbers(step, node, 0, example)
    if not default.is_same or numbers is None:
        return None
    if numbers.of in step.adjacent:
        raise GraphError(_ADJACENT.format(node=node, of=numbers.of))
    step.require_layout(node, 0, numbers)
    if numbers.of in sparse_feeds(step.view) and shape.is_lengths and not step.is_of_batches(shape):
        step.require_layout(node, 1, REPLICATED)
        step.localize_axis(node, 1, 0, example)
        return step.all_outputs(node, Sharded(0, example))
    step.localize(node, 1, 0, dims)
    return step.all_outputs(node, Sharded(0, example), shape.complete_values())


def normalize_entries(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseSoftmax: over entries whose places differ in the last number alone, which are of one example."""
    values = step.inputs(node)[1]
    if _take_sparse_input(step, node, (0, 1, 2)) is None:
        return None
    return step.all_outputs(node, values.layout, values.dims)


def reduce_entries(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseReduceSum and SparseReduceMax: over axes other than that of the examples."""
    _, _, shape, axes = step.inputs(node)
    dims, picked = shape.values(), axes.numbers()
    over = {axis % len(dims) for axis in picked} if dims and picked else {0}
    if 0 in over or not dims:
        return None
    is_kept = step.view.flag(node, "keep_dims")
    lengths = [ONE if axis in over else length for axis, length in enumerate(dims) if is_kept or axis not in over]
    if any(length is None or step.has_batch(length) for length in lengths[1:]):  # of a worker's own entries
        return None
    example = _take_sparse_input(step, node, (0, 1, 2))
    if example is None:
        return None
    step.require_layout(node, 3, REPLICATED)
    return step.all_outputs(node, Sharded(0, example), (example.length, *filter(None, lengths[1:])))


def combine_with_dense(step: StepWalk, node: str) -> list[Fact] | None:
    """SparseDenseCwiseAdd and similar: entries, each with that of a dense tensor in its place, which is broadcast."""
    values, shape, dense = step.inputs(node)[1:]
    dims = shape.values()
    example = step.part_of(dims[0]) if dims else None
    numbers = None if example is None else find_first_numbers(step, node, 0, example)
    if not dims or numbers is None or dense.dims is None or len(dense.dims) > len(dims):
        return None
    if numbers.of in step.adjacent and len(dense.dims) > 0 and dense.dims[-1] != ONE:  # whose columns are a worker's
        return None
    is_broadcast = len(dense.dims) < len(dims) or dense.dims[0] == ONE
    if not (dense.is_same if is_broadcast else (dense.axis, dense.part) == (0, example)):
        return None
    if _take_sparse_input(step, node, (0, 1, 2)) is None:
        return None
    return step.all_outputs(node, values.layout, values.dims)


def _take_sparse_input(
    step: StepWalk, node: str, slots: tuple[int, ...], example: ShardedAxis | None = None
) -> ShardedAxis | None:
    """Makes the indices, and the shape, of a sparse input per-worker, where they are those of a batch's examples.

    Args:
        step: the traversal.
        node: the op.
        slots: of the indices, the values and, where the op reads one, the shape.
        example: the axis of the examples, which by default the shape gives.

    Returns:
        This axis; None where the indices do not begin with the example's.
    """
    facts = step.inputs(node)
    places, values, *shapes = (facts[slot] for slot in slots)
    dims = shapes[0].values() if shapes else None
    example = step.part_of(dims[0]) if dims else example
    numbers = None if example is None else find_first_numbers(step, node, slots[0], example)
    if numbers is None or places.part is None or values.part != places.part:
        return None
    step.require_layout(node, slots[0], numbers)
    if dims:
        step.localize(node, slots[2], 0, dims)
    return example


def _make_sparse_tensor(step: StepWalk, node: str, part: ShardedAxis, first: int = 0, apart: int = 1) -> list[Fact]:
    """Indices, which begin with the example's, values, and the shape: every `apart`-th result."""
    entries = ShardedAxis(part.batch, Length.of(f"{node}[{first}]{UNEVEN}"))
    places, values, shape = (f"{node}:{first + place * apart}" for place in range(3))
    step.ranges.append(OffsetRange(node, part, along=step.view.inputs(node)[0], output=first, shape=shape))
    # The number of columns is that of the entries of a worker's longest example.
    longest = Length.of(part.batch) * Length.of(f"{node}[{first}]{DISTINCT}")
    return [
        step.fact(places, Sharded(0, entries), (entries.length, Length.of(2))),
        step.fact(values, Sharded(0, entries)),
        step.fact(shape, LENGTHS, (Length.of(2),), (part.length, longest)),
    ]
