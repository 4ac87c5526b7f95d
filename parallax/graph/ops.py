"""Describes the inputs of TensorFlow's state-writing ops, from the registered op definitions.

One description serves resource and reference variables: the inputs that are state, the one with the gradient or the
value, the one with the row indices, and the scalars that must be the same on all workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from tensorflow.core.framework import types_pb2
from tensorflow.python.framework import op_def_registry

from parallax.base.types import NodeDef, OpDef
from parallax.graph.row_updates import FIRST_STATE, UPDATES_OF_ROWS
from parallax.graph.view import GraphView, node_of, tensor_name

_APPLY = re.compile(r"^(Resource)?(Sparse)?Apply\w+$")
_SCATTER = re.compile(r"^(Resource)?Scatter(Add|Sub|Mul|Div|Min|Max|Update)$")
_OF_DEVICES = frozenset(["StatelessRandomGetAlg", "StatelessRandomGetKeyCounterAlg"])
"""Ops that choose an algorithm for the device, which is the same on all workers."""
_STATELESS_DRAW = re.compile(
    r"^(Stateless(Random(?!Get)\w+|(Parameterized)?TruncatedNormal(V2)?|Multinomial|Shuffle|SampleDistortedBoundingBox)"
    r"|RandomIndexShuffle)$"
)
_UNDECLARED_DRAWS = ("FractionalMaxPool", "FractionalAvgPool", "ExtractGlimpse", "ExtractGlimpseV2")
"""Ops that draw, though TensorFlow does not declare them stateful: a pool's regions, noise at borders."""
_ASSIGN = {
    "Assign": "assign",
    "AssignVariableOp": "assign",
    "AssignAdd": "delta",
    "AssignSub": "delta",
    "AssignAddVariableOp": "delta",
    "AssignSubVariableOp": "delta",
}
READS_OF_SHAPES = ("Rank", "Shape", "ShapeN", "Size")
"""Ops that read shapes of their inputs, and no entries."""
ADDITIVE_SCATTERS = ("ScatterAdd", "ScatterSub", "ResourceScatterAdd", "ResourceScatterSub")
"""Updates that allow equal rows to appear repeatedly and in parts."""
SEGMENT_LOOKUPS = tuple(
    f"SparseSegment{how}{form}" for how in ("Sum", "Mean", "SqrtN") for form in ("", "WithNumSegments")
)
"""Ops that gather rows by number and sum them by segment."""
LOOKUPS = ("ResourceGather", "GatherV2", "Gather", "ResourceGatherNd", "GatherNd", *SEGMENT_LOOKUPS)
"""Ops that gather rows of their first input by the numbers in their second."""
ELEMENTWISE = frozenset(
    """
    Abs AccumulateNV2 Acos Acosh Add AddN AddV2 Angle AsString Asin Asinh Atan Atan2 Atanh BesselI0 BesselI0e
    BesselI1 BesselI1e BesselJ0 BesselJ1 BesselK0 BesselK0e BesselK1 BesselK1e BesselY0 BesselY1 Betainc Bitcast
    BitwiseAnd BitwiseOr BitwiseXor Bucketize Cast Ceil CheckNumerics ClipByValue Complex ComplexAbs Conj Cos Cosh
    Dawsn DecodeBase64 Digamma Div DivNoNan Elu EluGrad EncodeBase64 EnsureShape Equal Erf Erfc Erfinv Exp Expint
    Expm1 FakeQuantWithMinMaxArgs FakeQuantWithMinMaxArgsGradient FakeQuantWithMinMaxVars
    FakeQuantWithMinMaxVarsPerChannel Floor FloorDiv FloorMod FresnelCos FresnelSin Greater GreaterEqual Identity
    Igamma IgammaGradA Igammac Imag Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu LeakyReluGrad LeftShift Less
    LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Ndtri Neg NextAfter
    NotEqual OnesLike Polygamma PopulationCount Pow PreventGradient RandomGammaGrad Real RealDiv Reciprocal
    ReciprocalGrad RegexFullMatch RegexReplace Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt RsqrtGrad
    Select SelectV2 Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Snapshot Softplus SoftplusGrad Softsign
    SoftsignGrad Spence Sqrt SqrtGrad Square SquaredDifference StaticRegexFullMatch StaticRegexReplace StopGradient
    StringJoin StringLength StringLower StringStrip StringToHashBucket StringToHashBucketFast
    StringToHashBucketStrong StringToNumber StringUpper Sub Substr Tan Tanh TanhGrad TruncateDiv TruncateMod
    UnicodeScript UnicodeTranscode Xdivy Xlog1py Xlogy ZerosLike Zeta
    """.split()
)
"""An element of the result is a function of the elements at its position, with broadcasting from the right, and of
nothing else. `Select` with a condition of lower rank than its branches broadcasts from the left.
"""
READS = frozenset(
    """
    ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp IsVariableInitialized VariableShape
    DestroyResourceOp
    """.split()
)
"""Ops that read a handle or reference and leave its value unchanged."""
PASSES_ON = ("Enter", "Identity", "RefEnter", "RefIdentity", "RefSwitch", "Switch")
"""Ops that return the handle or reference that they read."""
CONTROL_FLOW = frozenset(
    """
    If StatelessIf While StatelessWhile Case StatelessCase PartitionedCall StatefulPartitionedCall Switch RefSwitch
    Enter RefEnter Merge RefMerge IdentityN
    """.split()
)
"""Ops that pass a handle on to another place."""


@dataclass(frozen=True, slots=True)
class StateOp:
    """The inputs of a state-writing op, by their role.

    Attributes:
        kind: `apply` (an optimizer's fused update), `assign`, `delta` (adds or subtracts), `scatter`, or `unknown`.
        state: input numbers of the variable and then its slots.
        value: input number of the gradient, value or update rows; None where the op is unknown.
        indices: input number of the row indices; None for dense updates.
        others: input numbers of everything else (learning rates and the like).
    """

    kind: str
    state: tuple[int, ...]
    value: int | None
    indices: int | None
    others: tuple[int, ...]


def source_of(name: str, nodes: Mapping[str, NodeDef]) -> str:
    """The variable op that a handle or reference comes from; for any other tensor, its producer."""
    node = node_of(tensor_name(name))
    while node in nodes and nodes[node].op in PASSES_ON:
        node = node_of(tensor_name(nodes[node].input[0]))
    return node


def state_op(op: str, input_count: int) -> StateOp | None:
    """Describes a state-writing op; None for an op that writes no variable.

    Args:
        op: op type.
        input_count: the number of the node's inputs.
    """
    return _describe(op, input_count)


def is_optimizer_update(op: str) -> bool:
    """Whether an op updates a variable by a gradient; its other inputs are scalars and slots."""
    return _APPLY.match(op) is not None


def takes_state(op: str, slot: int) -> bool:
    """Whether input `slot` of such an op is a variable itself (a handle or a reference) and not its value."""
    if op in UPDATES_OF_ROWS:
        return slot >= FIRST_STATE
    kinds = _argument_kinds(op)
    return slot < len(kinds) and kinds[slot][1]


@cache
def seed_slots(op: str) -> tuple[int, ...]:
    """The input numbers that determine a stateless random op's draw: its seed, or key and counter.

    Empty for every other op, including those that only make keys of seeds.
    """
    definition = op_definition(op)
    if definition is None or not _STATELESS_DRAW.match(op):
        return ()
    return tuple(i for i, one in enumerate(definition.input_arg) if one.name in ("seed", "key", "counter"))


def is_stateful(op: str) -> bool:
    """Whether an op may return other values from the same inputs."""
    definition = op_definition(op)
    return op in _UNDECLARED_DRAWS or (definition is not None and bool(definition.is_stateful))


def takes_seeds(node: NodeDef) -> bool:
    """Whether a node draws by `seed` and `seed2`, and accepts any numbers: a pool refuses them if its own are 0."""
    return "seed" in node.attr and "seed2" in node.attr and node.op not in _UNDECLARED_DRAWS


def is_constant(view: GraphView, tensors: Iterable[str]) -> bool:
    """Whether tensors depend on nothing that changes from run to run, or differs between workers."""
    ops = {view.op(node) for node in view.ancestors(map(node_of, tensors))} - _OF_DEVICES
    return not any(op.startswith("Placeholder") or is_stateful(op) for op in ops)


@cache
def op_definition(op: str) -> OpDef | None:
    """TensorFlow's definition of an op type; None for functions and ops that are not registered."""
    return op_def_registry.get(op)


@cache
def takes_functions(op: str) -> bool:
    """Whether ops of this type have functions among their attributes; true for an op that is not registered."""
    definition = op_definition(op)
    return definition is None or any(attr.type in ("func", "list(func)") for attr in definition.attr)


@cache
def _argument_kinds(op: str) -> tuple[tuple[str, bool], ...]:
    """(name, is state) of every input, where no argument is a list."""
    definition = op_definition(op)
    if definition is None:
        return ()
    return tuple((a.name, a.is_ref or a.type == types_pb2.DT_RESOURCE) for a in definition.input_arg)


@cache
def _describe(op: str, input_count: int) -> StateOp | None:
    if op in UPDATES_OF_ROWS:
        return StateOp("apply", tuple(range(FIRST_STATE, input_count)), 0, 1, (2,))
    kinds = _argument_kinds(op)
    state = tuple(i for i, (_, is_state) in enumerate(kinds) if is_state)
    if op in _ASSIGN:
        return StateOp(_ASSIGN[op], (0,), 1, None, ())
    if _SCATTER.match(op):
        return StateOp("scatter", (0,), 2, 1, ())
    names = {name: i for i, (name, _) in enumerate(kinds)}
    if _APPLY.match(op) and len(kinds) == input_count:
        value = names.get("grad", names.get("delta", names.get("gradient")))
        indices = names.get("indices")
        others = tuple(i for i in range(input_count) if i not in (*state, value, indices))
        return StateOp("apply", state, value, indices, others)
    if op in READS or op in CONTROL_FLOW or not state:
        return None
    return StateOp("unknown", state, None, None, tuple(i for i in range(input_count) if i not in state))
