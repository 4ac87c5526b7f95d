"""Lists of op types that several rules share, each with the condition under which an op belongs to it.

An op that is in no list has no rule: what the analysis then assumes is always the worse.
"""

from __future__ import annotations

ELEMENTWISE = frozenset(
    """
    Neg Mul MulNoNan Add AddV2 Sub RealDiv Div DivNoNan FloorDiv FloorMod Maximum Minimum Square Sqrt Rsqrt Abs Sign
    Exp Expm1 Log Log1p Pow Select SelectV2 Greater Less GreaterEqual LessEqual Equal NotEqual LogicalAnd LogicalOr
    LogicalNot IsFinite IsNan IsInf StopGradient Cast ClipByValue Tanh Sigmoid Reciprocal Inv ZerosLike OnesLike
    SquaredDifference AddN Snapshot CheckNumerics PreventGradient Identity Print Softsign
    """.split()
)
"""An element of the result is a function of the elements in its place, with broadcasting from the right, and of nothing
else. `Select` with a condition of lower rank than its branches takes whole rows: it then broadcasts from the left, so
rules that count axes from the right leave it out (batch_axis.py, axis_rows.py)."""

FORWARD_ELEMENTWISE = ELEMENTWISE | frozenset(
    """
    Relu Relu6 Elu Selu LeakyRelu Softplus Sin Cos Tan Erf Erfc Ceil Floor Round Rint Mod TruncateDiv TruncateMod
    LogicalXor BitwiseAnd BitwiseOr BitwiseXor Bitcast EnsureShape Sinh Cosh Atan Atan2 Xlogy Xdivy Lgamma Digamma
    Complex Real Imag Conj ComplexAbs Angle
    """.split()
)
"""As ELEMENTWISE, for ops of models: nothing follows from them for gradient rows."""

KEEPS_IDS = (
    *("Identity", "Reshape", "Cast", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Snapshot"),
    *("Switch", "RefSwitch"),
)
"""The result has the elements of the first input, all of them and in their order (row-major); a Cast of ids is taken to
lose none, as an id that does not fit would be outside of its table; in a branch that is taken a Switch loses none."""

ONE_TO_ONE = ("Neg", "Add", "AddV2", "Sub", "BitwiseXor", "Invert")
"""With one operand that is equal on all workers and a scalar, distinct integers give distinct results (they wrap around
and do not saturate)."""

WHOLE_OR_ROWS = (
    "MatMul",
    "Conv2D",
    "BiasAdd",
    "MaxPool",
    "AvgPool",
    "DepthwiseConv2dNative",
    "Conv3D",
    "Conv1D",
    "LRN",
    *("MaxPool3D", "AvgPool3D", "Dilation2D", "SpaceToDepth", "DepthToSpace", "ExtractImagePatches"),
    *("ResizeBilinear", "ResizeNearestNeighbor", "ResizeBicubic", "ResizeArea"),
)
"""A row (first dimension) of the result depends on this row of the first input and on nothing else that is of the
batch, as long as the other inputs are equal on all workers and the first input is not transposed."""
