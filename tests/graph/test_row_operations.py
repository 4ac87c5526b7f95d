"""Each operation of update programs gives what TensorFlow's op of that name gives, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from parallax.graph.row_updates import row_update_ops
from tests.graph.test_row_updates import same_bits

v1 = tf.compat.v1
UNARY = {
    **{name: getattr(tf.math, name) for name in ("abs", "sign", "square", "sqrt", "rsqrt", "reciprocal", "exp", "log")},
    "floor": tf.floor,
    "neg": tf.negative,
    "not": lambda x: tf.logical_not(tf.cast(x, tf.bool)),
}
BINARY = {
    "add": tf.add,
    "sub": tf.subtract,
    "mul": tf.multiply,
    "div": tf.divide,
    "min": tf.minimum,
    "max": tf.maximum,
    "pow": tf.pow,
    "squared_difference": tf.math.squared_difference,
    "div_no_nan": tf.math.divide_no_nan,
    "mul_no_nan": tf.math.multiply_no_nan,
    **{"gt": tf.greater, "ge": tf.greater_equal, "lt": tf.less, "le": tf.less_equal},
    **{"eq": tf.equal, "ne": tf.not_equal},
    **{
        name: lambda x, y, op=op: op(tf.cast(x, tf.bool), tf.cast(y, tf.bool))
        for name, op in {"and": tf.logical_and, "or": tf.logical_or}.items()
    },
}
SPECIAL = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -1, 1, 0.5, 2, 1e-20, 1e-30])


def _numbers(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=1024) * 10.0 ** rng.integers(-6, 4, 1024), np.repeat(SPECIAL, len(SPECIAL))])
    y = np.concatenate([rng.normal(size=1024) * 10.0 ** rng.integers(-3, 2, 1024), np.tile(SPECIAL, len(SPECIAL))])
    return x.astype(dtype)[:, None], y.astype(dtype)[:, None]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_operations_give_the_bits_of_tensorflow(dtype: Any) -> None:
    x, y = _numbers(dtype)
    lines = [f"r{n} = {name} s0" + " s1" * (name in BINARY) for n, name in enumerate([*UNARY, *BINARY])]
    lines.append(f"r{len(lines)} = select s0 s1 r0")
    sets = [f"set s{n + 2} r{n}" for n in range(len(lines))]
    with tf.Graph().as_default(), v1.Session() as session:
        inputs = [v1.get_variable(name, initializer=value, use_resource=True) for name, value in (("x", x), ("y", y))]
        outputs = [v1.get_variable(f"o{n}", initializer=np.zeros_like(x), use_resource=True) for n in range(len(lines))]
        session.run(v1.global_variables_initializer())
        handles = [variable.handle for variable in [*inputs, *outputs]]
        program = "\n".join([f"states {len(handles)}", "scalars 0", *lines, *sets])
        nothing = np.zeros([0, 1], dtype), np.zeros([0], np.int32), np.zeros([0], dtype)
        session.run(row_update_ops().parallax_update_rows(*nothing, handles, program=program))
        session.run(row_update_ops().parallax_bring_up_to_date(handles, T=dtype))
        a, b = v1.placeholder(dtype, x.shape), v1.placeholder(dtype, x.shape)
        computed = [op(a) for op in UNARY.values()] + [op(a, b) for op in BINARY.values()]
        computed.append(tf.where(tf.cast(a, tf.bool), b, computed[0]))
        wanted = session.run([tf.cast(one, dtype) for one in computed], {a: x, b: y})
        made = session.run(outputs)
    assert [line for line, *both in zip(lines, made, wanted, strict=True) if not same_bits(*both)] == []
