"""The table from TensorFlow op to layout rule; an op without an entry reads replicated inputs on every worker."""

from __future__ import annotations

from collections.abc import Callable

from parallax.analysis.layouts.rules import (
    axes,
    branches,
    concatenation,
    creation,
    crops,
    indexed_ops,
    lists,
    lookups,
    matrix_products,
    plain,
    ragged,
    reductions,
    reshaping,
    scatters,
    shapes,
    slicing,
    sparse_examples,
    sparse_tensors,
    stacks,
)
from parallax.analysis.layouts.rules.elementwise import elementwise
from parallax.analysis.layouts.rules.facts import Fact
from parallax.analysis.layouts.rules.step_walk import StepWalk
from parallax.graph.contractions import MATRIX_PRODUCTS
from parallax.graph.ops import ELEMENTWISE, SEGMENT_LOOKUPS
from parallax.plans.layouts import Concatenated, Distinct, Layout, Positions, RowEnds

Rule = Callable[[StepWalk, str], list[Fact] | None]

_BY_EXAMPLE: dict[tuple[int, ...], list[str]] = {
    (0,): """
        Conv1D Conv2D Conv3D DepthwiseConv2dNative MaxPool MaxPoolV2 AvgPool MaxPool3D AvgPool3D LRN Dilation2D
        SpaceToDepth DepthToSpace ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea
        ResizeNearestNeighborGrad ScaleAndTranslate ExtractImagePatches AdjustContrastv2 AdjustHue AdjustSaturation
        RGBToHSV HSVToRGB ExtractVolumePatches IsotonicRegression Fingerprint
        """.split(),
    (0, 1): """
        InTopK InTopKV2 ResizeBilinearGrad ResizeBicubicGrad ScaleAndTranslateGrad ImageProjectiveTransformV2
        ImageProjectiveTransformV3 DrawBoundingBoxes DrawBoundingBoxesV2 CombinedNonMaxSuppression
        """.split(),
    (0, 1, 2): """
        MaxPoolGrad MaxPoolGradV2 MaxPool3DGrad MaxPoolGradGrad MaxPoolGradGradV2 MaxPool3DGradGrad LRNGrad
        """.split(),
    (0, 2): ["Dilation2DBackpropInput"],
}

_BACK_TO_SHAPES = {
    1: ("AvgPoolGrad", "AvgPool3DGrad"),
    2: ("Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"),
}
"""Input with the examples -> ops whose first input is the shape of the result."""

_DRAWS = """
    RandomUniform RandomUniformInt RandomStandardNormal TruncatedNormal StatelessRandomUniform
    StatelessRandomUniformV2 StatelessRandomNormal StatelessRandomNormalV2 StatelessTruncatedNormal
    StatelessTruncatedNormalV2 StatelessRandomUniformInt StatelessRandomUniformIntV2 StatelessRandomUniformFullInt
    StatelessRandomUniformFullIntV2 StatelessRandomGammaV2 StatelessRandomGammaV3 StatelessRandomBinomial
    StatelessRandomPoisson StatelessParameterizedTruncatedNormal
    """.split()

_BAG_GRADIENTS = tuple(f"SparseSegment{how}Grad{form}" for how in ("Sum", "Mean", "SqrtN") for form in ("", "V2"))
_SEGMENTS = tuple(f"Segment{how}" for how in ("Sum", "Mean", "Max", "Min"))
"""Ops whose result is 0 for an example without entries; SegmentProd's is 1."""
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
    "Roll": axes.make_axis_rule(axes.read_axes_from(2), keeps_shape=True),
    **{op: axes.make_example_rule(*slots) for slots, ops in _BY_EXAMPLE.items() for op in ops},
    **{op: axes.make_example_rule(slot, shape_slot=0) for slot, ops in _BACK_TO_SHAPES.items() for op in ops},
    **dict.fromkeys(
        ("SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"),
        axes.make_example_rule(0, 1, shaped_as_first=1),
    ),
    **dict.fromkeys(
        ("Softmax", "LogSoftmax", "FFT", "IFFT"),
        axes.make_axis_rule(axes.find_last_axis, keeps_shape=True),
    ),
    **dict.fromkeys(("TopK", "TopKV2", "RFFT", "IRFFT"), axes.make_axis_rule(axes.find_last_axis)),
    **dict.fromkeys(("FFT3D", "IFFT3D"), axes.make_axis_rule(axes.find_volume_axes, keeps_shape=True)),
    **dict.fromkeys(("RFFT3D", "IRFFT3D"), axes.make_axis_rule(axes.find_volume_axes)),
    **dict.fromkeys(_OF_MATRICES, axes.make_axis_rule(axes.find_matrix_axes)),
    **dict.fromkeys(_TO_MATRICES_ALIKE, axes.make_axis_rule(axes.find_matrix_axes, keeps_shape=True)),
    **dict.fromkeys(_SOLVE, axes.solve),
    **dict.fromkeys(
        ("MatrixDiag", "MatrixDiagV2", "MatrixDiagV3"),
        axes.make_axis_rule(axes.find_diagonal_axes),
    ),
    **dict.fromkeys(("MatrixSetDiag", "MatrixSetDiagV2", "MatrixSetDiagV3"), axes.make_pair_rule(0)),
    "Cross": axes.make_pair_rule(0, inner=1),
    "NthElement": axes.make_axis_rule(axes.find_last_axis, drops_axes=True),
    **dict.fromkeys(
        ("Cumsum", "Cumprod", "CumulativeLogsumexp", "ReverseV2"),
        axes.make_axis_rule(axes.read_axes_from(1), keeps_shape=True),
    ),
    **dict.fromkeys(("ArgMax", "ArgMin"), axes.make_axis_rule(axes.read_axes_from(1), drops_axes=True)),
    **dict.fromkeys(("GatherV2", "Gather"), indexed_ops.look_up),
    **dict.fromkeys(("LookupTableFind", "LookupTableFindV2"), lookups.find_in_table),
    "DenseBincount": reductions.count_values,
    **dict.fromkeys(("LowerBound", "UpperBound"), lookups.search_rows),
    **dict.fromkeys(("CropAndResize", "CropAndResizeGradBoxes", "CropAndResizeGradImage"), crops.crop),
    "GatherNd": indexed_ops.look_up_nested,
    "ScatterNd": scatters.scatter,
    **dict.fromkeys(_SCATTERS_INTO, scatters.scatter_into),
    **dict.fromkeys(
        (
            *("Conv2DBackpropFilter", "Conv3DBackpropFilterV2", "DepthwiseConv2dNativeBackpropFilter"),
            "Dilation2DBackpropFilter",
        ),
        axes.make_example_axes_rule({0: 0, 2: 0}, (None,)),
    ),
    **dict.fromkeys(
        ("FakeQuantWithMinMaxVarsGradient", "FakeQuantWithMinMaxVarsPerChannelGradient"),
        axes.make_example_axes_rule({0: 0, 1: 0}, (0, None), lambda facts: {0: facts[1].dims}),
    ),
    "MaxPoolWithArgmax": axes.number_within_examples(0),
    "MaxPoolGradWithArgmax": axes.number_within_examples(0, 1, 2),
    "ReverseSequence": axes.reverse_sequences,
    **dict.fromkeys(
        ("BlockLSTM", "BlockLSTMV2"),
        axes.make_example_axes_rule({1: 1, 2: 0, 3: 0}, (1,), axes.dims_over_time),
    ),
    **dict.fromkeys(
        ("BlockLSTMGrad", "BlockLSTMGradV2"),
        axes.make_example_axes_rule(
            {1: 1, 2: 0, 3: 0, **dict.fromkeys(range(9, 18), 1)}, (1, 0, 0, None), lambda facts: {0: facts[1].dims}
        ),
    ),
    "RaggedTensorToTensor": ragged.fill_up,
    **dict.fromkeys(_SAMPLERS, indexed_ops.draw_candidates),
    "ComputeAccidentalHits": indexed_ops.find_hits,
    "SparseToDense": sparse_examples.scatter_sparse_values,
    "SparseTensorDenseMatMul": indexed_ops.multiply_sparse,
    "DynamicPartition": indexed_ops.partition,
    **dict.fromkeys(("DynamicStitch", "ParallelDynamicStitch"), indexed_ops.stitch),
    "Where": sparse_tensors.find_nonzero,
    **dict.fromkeys(("ParseExample", "ParseExampleV2"), sparse_examples.parse_examples),
    **dict.fromkeys(("StringSplit", "StringSplitV2"), sparse_examples.split_texts),
    **dict.fromkeys(("SparseCross", "SparseCrossV2", "SparseCrossHashed"), sparse_examples.cross_features),
    "SparseSoftmax": sparse_examples.normalize_entries,
    **dict.fromkeys(("SparseReduceSum", "SparseReduceMax"), sparse_examples.reduce_entries),
    **dict.fromkeys(
        ("SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv"),
        sparse_examples.combine_with_dense,
    ),
    **dict.fromkeys(("CTCGreedyDecoder", "CTCBeamSearchDecoder"), sparse_examples.decode_labels),
    **dict.fromkeys(("CTCLoss", "CTCLossV2"), sparse_examples.label_losses),
    "SparseReshape": sparse_tensors.reshape_places,
    "SparseReorder": sparse_tensors.sort_entries,
    "SparseFillEmptyRows": sparse_tensors.fill_empty_rows,
    **dict.fromkeys((*_SEGMENTS, *SEGMENT_LOOKUPS), sparse_tensors.add_up_bags),
    **dict.fromkeys(_BAG_GRADIENTS, sparse_tensors.bag_gradient),
    **dict.fromkeys(("Unique", "UniqueV2"), sparse_tensors.take_distinct),
}
"""The rules of ops for inputs that are sharded or partial; for other inputs the plain rule applies."""

RULES: dict[str, Rule] = {
    **{op: plain.with_plain_fallback(rule) for op, rule in _OF_SHARDED.items()},
    **dict.fromkeys(sorted(ELEMENTWISE), elementwise),
    "BiasAdd": elementwise,
    "AddN": lists.add_all,
    "ZerosLike": lists.zeros_like,
    "Max": ragged.find_longest,
    **dict.fromkeys(("Sum", "Mean", "Min", "Prod", "All", "Any", "EuclideanNorm"), reductions.reduce_axes),
    "L2Loss": reductions.sum_of_squares,
    "BiasAddGrad": reductions.bias_gradient,
    **dict.fromkeys(MATRIX_PRODUCTS, matrix_products.matrix_product),
    "Einsum": matrix_products.einsum,
    "Reshape": reshaping.reshape,
    "ExpandDims": reshaping.expand_dims,
    "Squeeze": reshaping.squeeze,
    "Transpose": reshaping.transpose,
    "ConcatV2": concatenation.make_concatenation_rule(reshaping.concatenate),
    "Pack": reshaping.pack,
    "Unpack": reshaping.unpack,
    "Split": slicing.split,
    "SplitV": slicing.split_by_sizes,
    "StridedSlice": ragged.slice_ends,
    "StridedSliceGrad": slicing.slice_gradient,
    "Slice": slicing.slice_plainly,
    **dict.fromkeys(("Pad", "PadV2"), concatenation.add_zeros(concatenation.pad)),
    **dict.fromkeys(("MirrorPad", "MirrorPadGrad"), concatenation.pad),
    **dict.fromkeys(("SpaceToBatchND", "BatchToSpaceND"), slicing.fold_space),
    "Tile": reshaping.tile,
    "BroadcastTo": reshaping.broadcast_to,
    "Fill": reshaping.fill,
    "Empty": reshaping.make_empty,
    "ResourceGather": lookups.look_up_variable,
    "ResourceGatherNd": indexed_ops.look_up_nested,
    **dict.fromkeys(("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin"), indexed_ops.reduce_segments),
    "OneHot": creation.one_hot,
    "Range": creation.make_range,
    **dict.fromkeys(("Shape", "ShapeN", "Size"), shapes.read_shape),
    "ConcatOffset": shapes.compute_concat_offsets,
    "Rank": shapes.read_rank,
    "Print": plain.print_out,
    "StringFormat": plain.with_plain_fallback(plain.format_text),
    "BroadcastGradientArgs": shapes.find_broadcast_axes,
    **dict.fromkeys(_DRAWS, creation.draw),
    **dict.fromkeys(("RandomGamma", "RandomPoissonV2"), creation.draw_by_parameter),
    **dict.fromkeys(("Multinomial", "StatelessMultinomial"), creation.draw_by_example),
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
    **dict.fromkeys(("Switch", "RefSwitch"), branches.choose_branch),
    **dict.fromkeys(("Merge", "RefMerge"), branches.join_branches),
    **dict.fromkeys(("IdentityN", "NextIteration", "RefNextIteration"), plain.pass_each),
    **dict.fromkeys(("Exit", "RefExit"), branches.exit_loop),
    "LoopCond": branches.find_condition,
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
    "UnsortedSegmentSum": concatenation.make_segment_rule(indexed_ops.reduce_segments),
}
_OF_DISTINCT: dict[str, Rule] = {
    **dict.fromkeys(sorted(ELEMENTWISE), sparse_tensors.combine),
    **dict.fromkeys(("ResourceGather", "Gather", "GatherV2"), sparse_tensors.look_up),
    **dict.fromkeys((*_SEGMENTS, *SEGMENT_LOOKUPS), sparse_tensors.add_up_bags),
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
