"""The table from TensorFlow op to layout rule; an op without an entry reads replicated inputs on every worker."""

from __future__ import annotations

from collections.abc import Callable

from parallax.analysis.layouts.rules import (
    along,
    by_example,
    concatenation,
    cuts,
    frame_walk,
    gather_nd,
    joins,
    lists,
    matrix_products,
    moves,
    ragged,
    reductions,
    scatters,
    sparse_examples,
    sparse_tensors,
    stacks,
)
from parallax.analysis.layouts.rules.elementwise import elementwise
from parallax.analysis.layouts.rules.facts import Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.graph.ops import ELEMENTWISE, SEGMENT_LOOKUPS
from parallax.plans.layouts import Concatenated, Distinct, Layout, Positions, RowEnds

Rule = Callable[[StepWalk, str], list[Fact] | None]

_BY_EXAMPLE: dict[tuple[int, ...], list[str]] = {
    (0,): """
        Conv1D Conv2D Conv3D DepthwiseConv2dNative MaxPool MaxPoolV2 AvgPool MaxPool3D AvgPool3D LRN Dilation2D
        SpaceToDepth DepthToSpace ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea
        ResizeNearestNeighborGrad ExtractImagePatches AdjustContrastv2 AdjustHue AdjustSaturation RGBToHSV HSVToRGB
        """.split(),
    (0, 1): """
        InTopK InTopKV2 LRNGrad ResizeBilinearGrad ResizeBicubicGrad ImageProjectiveTransformV2
        ImageProjectiveTransformV3
        """.split(),
    (0, 1, 2): ["MaxPoolGrad", "MaxPoolGradV2", "MaxPool3DGrad", "MaxPoolGradGrad"],
    (1,): ["AvgPoolGrad", "AvgPool3DGrad"],
    (2,): [
        *("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
    ],
}

_DRAWS = """
    RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal StatelessRandomUniform
    StatelessRandomUniformV2 StatelessRandomNormal StatelessRandomNormalV2 StatelessTruncatedNormal
    StatelessTruncatedNormalV2 StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2
    """.split()

_BAG_GRADIENTS = tuple(f"SparseSegment{how}Grad{form}" for how in ("Sum", "Mean", "SqrtN") for form in ("", "V2"))
_SAMPLERS = ("LogUniformCandidateSampler", "UniformCandidateSampler", "FixedUnigramCandidateSampler")

_SCATTERS_INTO = tuple(f"TensorScatter{how}" for how in ("Add", "Max", "Min", "Sub", "Update"))

_OF_MATRICES = """
    FFT2D IFFT2D RFFT2D IRFFT2D MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3 MatrixDeterminant LogMatrixDeterminant
    SelfAdjointEigV2 Eig Svd Qr Lu
    """.split()
_TO_MATRICES_ALIKE = """
    MatrixBandPart MatrixInverse MatrixSquareRoot MatrixExponential MatrixLogarithm Cholesky
    """.split()
_SOLVE = "MatrixSolve MatrixTriangularSolve BandedTriangularSolve TridiagonalSolve".split()

_OF_SHARDED: dict[str, Rule] = {
    "Roll": along.make_axis_rule(along.along_named(2), is_alike=True),
    **{op: by_example.by_example(*slots) for slots, ops in _BY_EXAMPLE.items() for op in ops},
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"),
        by_example.by_example(0, 1, shaped_as_first=1),
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "FFT", "IFFT"), along.make_axis_rule(along.along_last, is_alike=True)),
    **dict.fromkeys(("TopK", "TopKV2", "RFFT", "IRFFT"), along.make_axis_rule(along.along_last)),
    **dict.fromkeys(_OF_MATRICES, along.make_axis_rule(along.along_two)),
    **dict.fromkeys(_TO_MATRICES_ALIKE, along.make_axis_rule(along.along_two, is_alike=True)),
    **dict.fromkeys(_SOLVE, along.solve),
    **dict.fromkeys(("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3"), along.make_axis_rule(along.along_diagonals)),
    **dict.fromkeys(("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"), along.make_pair_rule(0)),
    **dict.fromkeys(
        ("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"),
        along.make_axis_rule(along.along_named(1), is_alike=True),
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), along.make_axis_rule(along.along_named(1), drops_axes=True)),
    **dict.fromkeys(("GatherV2", "Gather"), gather_nd.look_up),
    **dict.fromkeys(("LookupTableFind", "LookupTableFindV2"), along.find_in_table),
    "DenseBincount": along.count_values,
    **dict.fromkeys(("LowerBound", "UpperBound"), along.search_rows),
    "GatherNd": gather_nd.look_up_nested,
    "ScatterNd": scatters.scatter,
    **dict.fromkeys(_SCATTERS_INTO, scatters.scatter_into),
    **dict.fromkeys(
        ("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"),
        by_example.by_axes({0: 0, 2: 0}, (None,)),
    ),
    **dict.fromkeys(
        ("FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient"),
        by_example.by_axes({0: 0, 1: 0}, (0, None), lambda facts: {0: facts[1].dims}),
    ),
    "MaxPoolWithArgmax": by_example.number_within_examples(0),
    "MaxPoolGradWithArgmax": by_example.number_within_examples(0, 1, 2),
    "ReverseSequence": by_example.turn_sequences,
    **dict.fromkeys(
        ("BlockLSTM", "BlockLSTMV2"), by_example.by_axes({1: 1, 2: 0, 3: 0}, (1,), by_example.dims_over_time)
    ),
    **dict.fromkeys(
        ("BlockLSTMGrad", "BlockLSTMGradV2"),
        by_example.by_axes(
            {1: 1, 2: 0, 3: 0, **dict.fromkeys(range(9, 18), 1)}, (1, 0, 0, None), lambda facts: {0: facts[1].dims}
        ),
    ),
    "RaggedTensorToTensor": ragged.fill_up,
    **dict.fromkeys(_SAMPLERS, gather_nd.draw_candidates),
    "ComputeAccidentalHits": gather_nd.find_hits,
    "SparseToDense": gather_nd.fill_places,
    "SparseTensorDenseMatMul": gather_nd.multiply_places,
    "DynamicPartition": gather_nd.partition,
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), gather_nd.stitch),
    "Where": sparse_tensors.find_places,
    **dict.fromkeys(("ParseExample", "ParseExampleV2"), sparse_examples.parse_examples),
    **dict.fromkeys(("StringSplit", "StringSplitV2"), sparse_examples.split_texts),
    **dict.fromkeys(("SparseCross", "SparseCrossV2", "SparseCrossHashed"), sparse_examples.cross_features),
    **dict.fromkeys(("CTCGreedyDecoder", "CTCBeamSearchDecoder"), sparse_examples.decode_labels),
    **dict.fromkeys(("CTCLoss", "CTCLossV2"), sparse_examples.label_losses),
    "SparseReshape": sparse_tensors.reshape_places,
    "SparseFillEmptyRows": sparse_tensors.fill_empty_rows,
    **dict.fromkeys(("SegmentSum", *SEGMENT_LOOKUPS), sparse_tensors.add_up_bags),
    **dict.fromkeys(_BAG_GRADIENTS, sparse_tensors.bag_gradient),
    **dict.fromkeys(("Unique", "UniqueV2"), sparse_tensors.take_distinct),
}
"""The rules of ops for inputs that are sharded or partial; for other inputs the plain rule applies."""

RULES: dict[str, Rule] = {
    **{op: along.with_plain_fallback(rule) for op, rule in _OF_SHARDED.items()},
    **dict.fromkeys(sorted(ELEMENTWISE), elementwise),
    "BiasAdd": elementwise,
    "AddN": lists.add_all,
    "ZerosLike": lists.zeros_like,
    "Max": ragged.find_longest,
    **dict.fromkeys(("Sum", "Mean", "Min", "Prod", "All", "Any", "EuclideanNorm"), reductions.reduce_axes),
    "L2Loss": reductions.sum_of_squares,
    "BiasAddGrad": reductions.bias_gradient,
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), matrix_products.matrix_product),
    "Einsum": matrix_products.einsum,
    "Reshape": moves.reshape,
    "ExpandDims": moves.expand_dims,
    "Squeeze": moves.squeeze,
    "Transpose": moves.transpose,
    "ConcatV2": concatenation.make_concatenation_rule(moves.concatenate),
    "Pack": moves.pack,
    "Unpack": moves.unpack,
    "Split": cuts.split,
    "SplitV": cuts.split_by_sizes,
    "StridedSlice": ragged.slice_ends,
    "StridedSliceGrad": cuts.slice_gradient,
    "Slice": cuts.slice_plainly,
    **dict.fromkeys(("Pad", "PadV2"), concatenation.add_zeros(cuts.pad)),
    **dict.fromkeys(("MirrorPad", "MirrorPadGrad"), cuts.pad),
    **dict.fromkeys(("SpaceToBatchND", "BatchToSpaceND"), cuts.fold_space),
    "Tile": moves.tile,
    "BroadcastTo": moves.broadcast_to,
    "Fill": moves.fill,
    "Empty": moves.make_empty,
    "ResourceGather": along.look_up_variable,
    "ResourceGatherNd": gather_nd.look_up_nested,
    **dict.fromkeys(("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin"), gather_nd.add_by_number),
    "OneHot": along.one_hot,
    "Range": along.make_range,
    **dict.fromkeys(("Shape", "ShapeN", "Size"), along.read_shape),
    "ConcatOffset": along.offsets_of_pieces,
    "Rank": along.rank_of,
    "Print": along.print_out,
    "BroadcastGradientArgs": along.gradient_axes,
    **dict.fromkeys(_DRAWS, along.draw),
    **dict.fromkeys(("EmptyTensorList", "TensorListReserve"), lists.make_list),
    "TensorListFromTensor": lists.list_from_tensor,
    **dict.fromkeys(("TensorListStack", "TensorListGather"), lists.stack_list),
    "TensorListPushBack": lists.push_back,
    "TensorListPopBack": lists.pop_back,
    "TensorListSetItem": lists.set_item,
    "TensorListGetItem": lists.get_item,
    **dict.fromkeys(("OptionalFromValue", "OptionalNone"), lists.make_optional),
    "OptionalGetValue": lists.get_value,
    "TensorListLength": lists.measure_list,
    "TensorListElementShape": lists.shape_of_items,
    "TensorListResize": lists.resize,
    **dict.fromkeys(("Switch", "RefSwitch"), joins.choose_branch),
    **dict.fromkeys(("Merge", "RefMerge"), joins.join_branches),
    **dict.fromkeys(("IdentityN", "NextIteration", "RefNextIteration"), along.pass_each),
    **dict.fromkeys(("Exit", "RefExit"), frame_walk.leave),
    "LoopCond": frame_walk.decide,
    **dict.fromkeys(
        ("StackV2", "TensorArrayV3", "TensorArrayGradV3", "TensorArrayGradWithShape"),
        stacks.make_store,
    ),
    "StackPushV2": stacks.push,
    "StackPopV2": stacks.pop,
    "TensorArrayWriteV3": stacks.write,
    "TensorArrayReadV3": stacks.read,
    "TensorArrayGatherV3": stacks.stack_elements,
    "TensorArrayScatterV3": stacks.store_slices,
    "TensorArrayConcatV3": stacks.concatenate_elements,
    "TensorArraySplitV3": stacks.store_pieces,
    "TensorArraySizeV3": stacks.measure_store,
}

_OF_ROWS = {"Reshape": concatenation.reshape_rows, "Shape": concatenation.read_shape, "Size": concatenation.read_shape}
_OF_CONCATENATED: dict[str, Rule] = {
    **dict.fromkeys(("Identity", "StopGradient", "Cast"), concatenation.pass_on),
    **dict.fromkeys(("ResourceGather", "Gather", "GatherV2"), concatenation.look_up),
    "Slice": concatenation.take_piece,
    **_OF_ROWS,
    **dict.fromkeys(("AddN", "Add", "AddV2"), concatenation.add_up),
}
_OF_DISTINCT: dict[str, Rule] = {
    **dict.fromkeys(sorted(ELEMENTWISE), sparse_tensors.combine),
    **dict.fromkeys(("ResourceGather", "Gather", "GatherV2"), sparse_tensors.look_up),
    **dict.fromkeys(("SegmentSum", *SEGMENT_LOOKUPS), sparse_tensors.add_up_bags),
    **dict.fromkeys(_BAG_GRADIENTS, sparse_tensors.bag_gradient),
    "UnsortedSegmentSum": sparse_tensors.add_up_positions,
    **dict.fromkeys(("Sum", "Mean", "Max", "Min", "Prod"), sparse_tensors.reduce_rows),
    **_OF_ROWS,
}


def _choose_rule(layouts: tuple[type[Layout], ...], of_those: Rule, of_others: Rule) -> Rule:
    """The rule of an op that accepts such layouts unchanged, and others by another rule."""

    def rule(step: StepWalk, node: str) -> list[Fact] | None:
        return (of_those if step.reads_any(node, layouts) else of_others)(step, node)

    return rule


_CONCATENATED, _DISTINCT = (Concatenated,), (Distinct, Positions)
RULES |= {op: _choose_rule(_CONCATENATED, rule, RULES[op]) for op, rule in _OF_CONCATENATED.items()}
RULES |= {op: _choose_rule(_DISTINCT, rule, RULES[op]) for op, rule in _OF_DISTINCT.items()}
TAKEN = (((RowEnds,), ragged.TAKE_ENDS), (_CONCATENATED, _OF_CONCATENATED), (_DISTINCT, _OF_DISTINCT))
"""Layouts, and the ops whose rules accept them unchanged; all other ops read such tensors replicated."""
