"""Layout rules of ops on stacks and TensorArrays, as TensorFlow 1 loops use them.

The contents of a stack or TensorArray are not in its handle, so the traversal records what is known of the tensors of
each. All of them have one layout; if a tensor of another layout is written, the container stores replicated tensors.
"""

from __future__ import annotations

from parallax.analysis.layouts.rules.branches import join_facts
from parallax.analysis.layouts.rules.elementwise import FLOATS
from parallax.analysis.layouts.rules.facts import LENGTHS, REPLICATED, Dims, Fact, shift_axis
from parallax.analysis.layouts.rules.indexed_ops import find_numbers
from parallax.analysis.layouts.rules.step_walk import REMEDY, StepWalk
from parallax.base.errors import GraphError
from parallax.graph.lengths import Length
from parallax.graph.tensor_stores import store_of
from parallax.plans.layouts import PerExample, Sharded, ShardedAxis


def make_store(step: StepWalk, node: str) -> list[Fact] | None:
    """StackV2, TensorArrayV3 and TensorArrayGradV3: a replicated number of tensors, or one for each example."""
    if step.view.op(node) == "TensorArrayV3" and node not in step.gathered:
        (size,) = step.inputs(node)
        part = step.part_of(size.value) if size.is_lengths and isinstance(size.value, Length) else None
        if part is not None:
            step.arrays[node] = part
            step.keep_local(node)
            return step.all_outputs(node, REPLICATED)
    step.replicate(node)
    return step.all_outputs(node, REPLICATED)


def push(step: StepWalk, node: str) -> list[Fact] | None:
    """StackPushV2 returns its input."""
    return [_store_tensor(step, node, 1, step.inputs(node)[1])]


def pop(step: StepWalk, node: str) -> list[Fact] | None:
    """StackPopV2."""
    fact = _find_elements_of_all(step, node)
    if fact is None:
        raise GraphError(f"Cannot determine which tensor {node!r} pops from a stack. {REMEDY}")
    return step.all_outputs(node, fact.layout, fact.dims, fact.value)


def write(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorArrayWriteV3 returns a flow, which orders ops."""
    step.require_layout(node, 1, REPLICATED)
    _store_tensor(step, node, 2, step.inputs(node)[2])
    return step.all_outputs(node, REPLICATED)


def read(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorArrayReadV3; of an array without elements all workers have zeros."""
    step.require_layout(node, 1, REPLICATED)
    fact = _find_elements_of_all(step, node)
    return step.all_outputs(node, REPLICATED) if fact is None else [step.fact(f"{node}:0", fact.layout, fact.dims)]


def stack_elements(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorArrayGatherV3: some tensors along a new first axis."""
    fact = find_elements(step, node)
    if fact is not None and isinstance(fact.layout, PerExample) and _is_in_order(step, node, fact.layout.part):
        dims = None if fact.dims is None else (fact.layout.part.length, *fact.dims)
        return step.all_outputs(node, Sharded(0, fact.layout.part), dims)
    numbers, fact = step.require_layout(node, 1, REPLICATED), _find_elements_of_all(step, node)
    if fact is None:
        return step.all_outputs(node, REPLICATED)
    dims = (numbers.dims[0], *fact.dims) if numbers.dims and fact.dims is not None else None
    return step.all_outputs(node, shift_axis(fact.layout, 1), dims)


def store_slices(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorArrayScatterV3: the slices along the first axis."""
    fact = step.inputs(node)[2]
    part = find_examples(step, _find_store(step, node))
    if part is not None and fact.layout == Sharded(0, part) and _is_in_order(step, node, part):
        dims = fact.dims[1:] if fact.dims is not None else None
        numbers = find_numbers(step, step.view.inputs(node)[2], part) if fact.rank == 1 else None
        is_index = numbers is not None and not numbers.times
        if numbers is not None and is_index:
            step.require_layout(node, 2, numbers)
        record_elements(step, _find_store(step, node), Fact(PerExample(part, "index" if is_index else ""), dims))
        return step.all_outputs(node, REPLICATED)
    step.require_layout(node, 1, REPLICATED)
    if fact.axis == 0:
        step.mixing[node] = [step.view.inputs(node)[2]]
        fact = step.require_layout(node, 2, REPLICATED)
    _store_tensor(step, node, 2, Fact(shift_axis(fact.layout, -1), fact.dims[1:] if fact.dims is not None else None))
    return step.all_outputs(node, REPLICATED)


def concatenate_elements(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorArrayConcatV3: tensors concatenated along their first axis, and the length of each."""
    fact = _find_elements_of_all(step, node)
    if fact is not None and fact.axis == 0:
        step.gathered.add(_find_store(step, node))
        fact = None
    value, lengths = step.view.outputs(node)
    layout = REPLICATED if fact is None else fact.layout
    return [step.fact(value, layout, _open_first(step, value, fact)), step.fact(lengths, REPLICATED)]


def store_pieces(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorArraySplitV3: pieces along the first axis, which are replicated where that is sharded."""
    step.require_layout(node, 2, REPLICATED)
    fact = step.inputs(node)[1]
    if fact.axis == 0:
        step.mixing[node] = [step.view.inputs(node)[1]]
        fact = step.require_layout(node, 1, REPLICATED)
    _store_tensor(step, node, 1, Fact(fact.layout, _open_first(step, f"{node}:0", fact)))
    return step.all_outputs(node, REPLICATED)


def measure_store(step: StepWalk, node: str) -> list[Fact] | None:
    """TensorArraySizeV3."""
    part = find_examples(step, _find_store(step, node))
    if part is not None:
        return step.all_outputs(node, LENGTHS, (), part.length)
    return step.all_outputs(node, REPLICATED, ())


def _find_store(step: StepWalk, node: str) -> str:
    return store_of(step.view, step.view.inputs(node)[0])


def find_examples(step: StepWalk, store: str) -> ShardedAxis | None:
    """The sharded axis of which an array has an element for each of a worker's entries; None for other containers."""
    return step.arrays.get(store.partition(" ")[0])


def find_elements(step: StepWalk, node: str) -> Fact | None:
    """The fact of the tensors that a node reads from a container; None where it is empty."""
    store = _find_store(step, node)
    return step.stored_before.get(store) or step.stored.get(store)


def _find_elements_of_all(step: StepWalk, node: str) -> Fact | None:
    """The same; elements of which each worker has those of its examples are gathered."""
    fact, store = find_elements(step, node), _find_store(step, node)
    if (fact is not None and isinstance(fact.layout, PerExample)) or find_examples(step, store) is not None:
        step.gathered.add(store.partition(" ")[0])
        return None if fact is None else Fact(REPLICATED, fact.dims)
    return fact


def _is_in_order(step: StepWalk, node: str, part: ShardedAxis) -> bool:
    """Whether an op accesses the elements of an array by their numbers, from the first to the last."""
    if step.view.op(node) == "TensorArrayGatherV3" and step.may_stack_none(part, f"{node}:0"):
        return False
    numbers = find_numbers(step, step.view.inputs(node)[1], part)
    if numbers is None or numbers.times or step.inputs(node)[1].rank != 1:
        return False
    step.require_layout(node, 1, numbers)
    return True


def _store_tensor(step: StepWalk, node: str, slot: int, fact: Fact) -> Fact:
    """Writes a tensor, or slices of it, to a container.

    Args:
        step: the traversal.
        node: the writing node.
        slot: the input number of the tensor.
        fact: the fact of the written tensors.

    Returns:
        Their fact inside the container.
    """
    store = _find_store(step, node)
    if find_examples(step, store) is not None:
        step.gathered.add(store.partition(" ")[0])
    is_computed = fact.is_lengths and step.view.dtype(step.view.inputs(node)[slot]) in FLOATS  # no length of a shape
    if is_computed or (store in step.gathered and not fact.is_same):
        item = step.require_layout(node, slot, REPLICATED)
        fact = Fact(REPLICATED, fact.dims, item.value)
    before = step.stored.get(store)
    merged = fact if before is None else join_facts(step, f"{node}:0", before, fact)
    layouts = {fact.layout} if before is None else {before.layout, fact.layout}
    if merged is None or (len(layouts) > 1 and not layouts <= {REPLICATED, LENGTHS}):
        step.gathered.add(store)
        merged = Fact(REPLICATED)
    record_elements(step, store, merged)
    return fact


def record_elements(step: StepWalk, store: str, fact: Fact) -> None:
    """Records the fact of a container's elements; those of a gradient's array have the forward array's lengths."""
    step.stored[store] = fact
    forward = store.rpartition(" ")[0]
    stored = step.stored.get(forward)
    if stored is not None and fact.is_same != stored.is_same:
        step.gathered.add(forward if fact.is_same else store)


def _open_first(step: StepWalk, tensor: str, fact: Fact | None) -> Dims | None:
    """The lengths of a tensor with another first axis."""
    known = step.fact(tensor, REPLICATED).dims
    return None if fact is None or not fact.dims or not known else (known[0], *fact.dims[1:])
