"""TensorFlow's elementwise ops, with their names in update programs."""

from __future__ import annotations

PASSES = ("Identity", "StopGradient", "PreventGradient", "Snapshot", "EnsureShape", "CheckNumerics")
"""Ops that pass on their first input."""

ELEMENTWISE = {
    "Add": "add",
    "AddV2": "add",
    "Sub": "sub",
    "Mul": "mul",
    "RealDiv": "div",
    "Div": "div",
    "DivNoNan": "div_no_nan",
    "MulNoNan": "mul_no_nan",
    "Neg": "neg",
    "Abs": "abs",
    "Sign": "sign",
    "Square": "square",
    "SquaredDifference": "squared_difference",
    "Sqrt": "sqrt",
    "Rsqrt": "rsqrt",
    "Reciprocal": "reciprocal",
    "Inv": "reciprocal",
    "Maximum": "max",
    "Minimum": "min",
    "Pow": "pow",
    "Exp": "exp",
    "Log": "log",
    "Floor": "floor",
    "Greater": "gt",
    "GreaterEqual": "ge",
    "Less": "lt",
    "LessEqual": "le",
    "Equal": "eq",
    "NotEqual": "ne",
    "LogicalAnd": "and",
    "LogicalOr": "or",
    "LogicalNot": "not",
    "Select": "select",
    "SelectV2": "select",
}

LARGEST_SUM = 8
"""AddN adds up to this many tensors from left to right, and more of them in groups."""

ADDED = {"AssignAddVariableOp": "add", "AssignSubVariableOp": "sub", "ResourceScatterAdd": "add"}
ADDED["ResourceScatterSub"] = "sub"
"""The operation of a write on its value and the old one."""
