"""Optimizers as update programs (parallax/graph/row_updates.py), and as the dense computation that TensorFlow makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

Dense = Callable[[Any, Sequence[Any], Sequence[Any], Callable[[float], Any]], Sequence[Any]]


@dataclass(frozen=True)
class Optimizer:
    """One optimizer twice.

    Attributes:
        states: the table and its slots.
        scalars: of update t (from 1) with a learning rate.
        body: of the program; `{0.9}` is the constant 0.9 in the state's type.
        known: `decay` and `move` lines; none where updates without gradient are not covered.
        dense: new states of the gradient, the states, the scalars, and what makes a constant.
        first_slot: what the slots begin with.
    """

    states: int
    scalars: Callable[[float, int], Sequence[float]]
    body: str
    known: str
    dense: Dense
    first_slot: float = 0.0

    def program(self, dtype: Any, known: bool = False) -> str:
        text = self.body + (self.known if known else "")
        lines = [f"states {self.states}", f"scalars {len(self.scalars(1.0, 1))}"]
        for line in filter(None, map(str.strip, text.splitlines())):
            words = [f"c:{float(dtype(float(w[1:-1]))).hex()}" if w[0] == "{" else w for w in line.split()]
            lines.append(" ".join(words))
        return "\n".join(lines)


def only_rate(rate: float, t: int) -> Sequence[float]:
    return [rate]


def corrected(rate: float, t: int) -> Sequence[float]:
    return [rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)]


def _momentum(g, s, h, c):
    m = s[1] * c(0.9) - g * h[0]
    return [s[0] + m, m]


def _nesterov(g, s, h, c):
    m = s[1] * c(0.9) - g * h[0]
    return [s[0] + (m * c(0.9) - g * h[0]), m]


def _rmsprop(g, s, h, c):
    v = s[1] * c(0.9) + tf.square(g) * c(0.1)
    average = s[2] * c(0.9) + g * c(0.1)
    momentum = s[3] * c(0.8) + h[0] * g / tf.sqrt(v - tf.square(average) + c(1e-7))
    return [s[0] - momentum, v, average, momentum]


def _moments(g, s, c, beta1=0.1, beta2=0.001):
    return s[1] + (g - s[1]) * c(beta1), s[2] + (tf.square(g) - s[2]) * c(beta2)


def _adam(g, s, h, c):
    m, v = _moments(g, s, c)
    return [s[0] - m * h[0] / (tf.sqrt(v) + c(1e-7)), m, v]


def _adam_forgetful(g, s, h, c):
    m, v = _moments(g, s, c, 0.01, 0.1)
    return [s[0] - m * h[0] / (tf.sqrt(v) + c(1e-7)), m, v]


def _adam_unguarded(g, s, h, c):
    m, v = _moments(g, s, c)
    return [s[0] - m * h[0] / (tf.sqrt(v) + c(0.0)), m, v]


def _amsgrad(g, s, h, c):
    m, v = _moments(g, s, c)
    greatest = tf.maximum(s[3], v)
    return [s[0] - m * h[0] / (tf.sqrt(greatest) + c(1e-7)), m, v, greatest]


def _adamw(g, s, h, c):
    m, v = _moments(g, s, c)
    decayed = s[0] - s[0] * c(0.004) * h[0]
    return [decayed - m * h[1] / (tf.sqrt(v) + c(1e-7)), m, v]


def _adamax(g, s, h, c):
    m = s[1] + (g - s[1]) * c(0.1)
    u = tf.maximum(s[2] * c(0.999), tf.abs(g))
    return [s[0] - (h[0] * m) / (h[1] * (u + c(1e-7))), m, u]


def _nadam(g, s, h, c):
    m, v = _moments(g, s, c)
    ahead = m * h[1] + g * h[2]
    return [s[0] - ahead * h[0] / (tf.sqrt(v / h[3]) + c(1e-7)), m, v]


def _adadelta(g, s, h, c):
    a = s[1] * c(0.95) + tf.square(g) * c(0.05)
    delta = tf.negative(tf.sqrt(s[2] + c(1e-7))) * g / tf.sqrt(a + c(1e-7))
    return [s[0] + h[0] * delta, a, s[2] * c(0.95) + tf.square(delta) * c(0.05)]


def _lion(g, s, h, c):
    direction = tf.sign(s[1] * c(0.9) + g * c(0.1))
    return [s[0] - h[0] * direction, s[1] * c(0.99) + g * c(0.01)]


def _ftrl(g, s, h, c):
    n = s[1] + tf.square(g)
    root = tf.sqrt(n)
    z = s[2] + g - (root - tf.sqrt(s[1])) / h[0] * s[0]
    clipped = tf.maximum(tf.minimum(z, c(0.01)), c(-0.01))
    return [(clipped - z) / (root / h[0] + c(0.02)), n, z]


def _average(g, s, h, c):
    w = s[0] - h[0] * g
    return [w, s[1] * c(0.99) + w * c(0.01)]


def _weight_decay(g, s, h, c):
    return [s[0] * h[0] - g * c(0.1)]


_MOMENTS = """
    r0 = sub g s1
    r1 = mul r0 {%s}
    r2 = add s1 r1
    set s1 r2
    r3 = square g
    r4 = sub r3 s2
    r5 = mul r4 {%s}
    r6 = add s2 r5
    set s2 r6
"""
_MOMENTS_KNOWN = """
    r20 = sub c:1 {%s}
    decay s1 r20
    r21 = sub c:1 {%s}
    decay s2 r21
"""
_STEP = """
    r7 = mul r2 h0
    r8 = sqrt r6
    r9 = add r8 {%s}
    r10 = div r7 r9
    r11 = sub s0 r10
    set s0 r11
    r12 = abs r10
"""


def _numbered(known: str, first: int) -> str:
    return known.replace("r20", f"r{first}").replace("r21", f"r{first + 1}")


def _of_adam(beta1: str, beta2: str, dense: Dense, epsilon: str = "1e-7") -> Optimizer:
    known = _numbered(_MOMENTS_KNOWN % (beta1, beta2), 13) + "move s0 c:1 r12 s1:1:1 s2:-0.5:0 h0:1:1"
    return Optimizer(3, corrected, _MOMENTS % (beta1, beta2) + _STEP % epsilon, known, dense)


_VELOCITY = "r0 = mul s1 {0.9}\n r1 = mul g h0\n r2 = sub r0 r1\n set s1 r2\n"

OPTIMIZERS = {
    "momentum": Optimizer(
        2,
        only_rate,
        _VELOCITY + "r3 = add s0 r2\n set s0 r3\n",
        "decay s1 {0.9}\n r4 = abs r2\n move s0 c:1 r4 s1:1:1",
        _momentum,
    ),
    "nesterov": Optimizer(
        2,
        only_rate,
        _VELOCITY + "r3 = mul r2 {0.9}\n r4 = sub r3 r1\n r5 = add s0 r4\n set s0 r5\n",
        "decay s1 {0.9}\n r6 = abs r4\n move s0 c:1 r6 s1:1:1",
        _nesterov,
    ),
    "rmsprop": Optimizer(
        4,
        only_rate,
        """
        r0 = mul s1 {0.9}
        r1 = square g
        r2 = mul r1 {0.1}
        r3 = add r0 r2
        set s1 r3
        r4 = mul s2 {0.9}
        r5 = mul g {0.1}
        r6 = add r4 r5
        set s2 r6
        r7 = mul s3 {0.8}
        r8 = mul h0 g
        r9 = square r6
        r10 = sub r3 r9
        r11 = add r10 {1e-7}
        r12 = sqrt r11
        r13 = div r8 r12
        r14 = add r7 r13
        set s3 r14
        r15 = sub s0 r14
        set s0 r15
        """,
        "decay s1 {0.9}\n decay s2 {0.9}\n decay s3 {0.8}\n r16 = abs r7\n move s0 c:1 r16 s3:1:1",
        _rmsprop,
    ),
    "adam": _of_adam("0.1", "0.001", _adam),
    "adam_forgetful": _of_adam("0.01", "0.1", _adam_forgetful),  # beta1 > sqrt(beta2): a step grows before it shrinks
    "adam_unguarded": _of_adam("0.1", "0.001", _adam_unguarded, "0"),  # divides by what may become zero
    "amsgrad": Optimizer(
        4,
        corrected,
        _MOMENTS % ("0.1", "0.001") + "r7 = max s3 r6\n set s3 r7\n"
        "r8 = mul r2 h0\n r9 = sqrt r7\n r10 = add r9 {1e-7}\n r11 = div r8 r10\n r12 = sub s0 r11\n set s0 r12\n",
        _numbered(_MOMENTS_KNOWN % ("0.1", "0.001"), 13)
        + "decay s3 c:1\n r15 = abs r11\n move s0 c:1 r15 s1:1:1 s3:-0.5:0 h0:1:1",
        _amsgrad,
    ),
    "adamw": Optimizer(
        3,
        lambda rate, t: [rate, *corrected(rate, t)],
        _MOMENTS
        % ("0.1", "0.001")
        + "r7 = mul s0 {0.004}\n r8 = mul r7 h0\n r9 = sub s0 r8\n r10 = mul r2 h1\n r11 = sqrt r6\n"
        "r12 = add r11 {1e-7}\n r13 = div r10 r12\n r14 = sub r9 r13\n set s0 r14\n",
        _numbered(_MOMENTS_KNOWN % ("0.1", "0.001"), 15)
        + "r17 = mul {0.004} h0\n r18 = sub c:1 r17\n r19 = abs r13\n move s0 r18 r19 s1:1:1 s2:-0.5:0 h1:1:1",
        _adamw,
    ),
    "adamax": Optimizer(
        3,
        lambda rate, t: [rate, 1 - 0.9**t],
        """
        r0 = sub g s1
        r1 = mul r0 {0.1}
        r2 = add s1 r1
        set s1 r2
        r3 = mul s2 {0.999}
        r4 = abs g
        r5 = max r3 r4
        set s2 r5
        r6 = mul h0 r2
        r7 = add r5 {1e-7}
        r8 = mul h1 r7
        r9 = div r6 r8
        r10 = sub s0 r9
        set s0 r10
        """,
        "r11 = sub c:1 {0.1}\n decay s1 r11\n decay s2 {0.999}\n r12 = abs r9\n"
        "move s0 c:1 r12 s1:1:1 s2:-1:0 h0:1:1 h1:-1:-1",
        _adamax,
    ),
    "nadam": Optimizer(
        3,
        lambda rate, t: [rate, 0.9 / (1 - 0.9 ** (t + 1)), 0.1 / (1 - 0.9**t), 1 - 0.999**t],
        _MOMENTS
        % ("0.1", "0.001")
        + "r7 = mul r2 h1\n r8 = mul g h2\n r9 = add r7 r8\n r10 = mul r9 h0\n r11 = div r6 h3\n r12 = sqrt r11\n"
        "r13 = add r12 {1e-7}\n r14 = div r10 r13\n r15 = sub s0 r14\n set s0 r15\n",
        _numbered(_MOMENTS_KNOWN % ("0.1", "0.001"), 16)
        + "r18 = abs r14\n move s0 c:1 r18 s1:1:1 s2:-0.5:0 h0:1:1 h1:1:1 h3:0:0.5",
        _nadam,
    ),
    "adadelta": Optimizer(
        3,
        only_rate,
        """
        r0 = mul s1 {0.95}
        r1 = square g
        r2 = mul r1 {0.05}
        r3 = add r0 r2
        set s1 r3
        r4 = add s2 {1e-7}
        r5 = sqrt r4
        r6 = neg r5
        r7 = mul r6 g
        r8 = add r3 {1e-7}
        r9 = sqrt r8
        r10 = div r7 r9
        r11 = mul h0 r10
        r12 = add s0 r11
        set s0 r12
        r13 = mul s2 {0.95}
        r14 = square r10
        r15 = mul r14 {0.05}
        r16 = add r13 r15
        set s2 r16
        """,
        "decay s0 c:1\n decay s1 {0.95}\n decay s2 {0.95}",
        _adadelta,
    ),
    "lion": Optimizer(
        2,
        only_rate,
        "r0 = mul s1 {0.9}\n r1 = mul g {0.1}\n r2 = add r0 r1\n r3 = sign r2\n r4 = mul h0 r3\n r5 = sub s0 r4\n"
        "set s0 r5\n r6 = mul s1 {0.99}\n r7 = mul g {0.01}\n r8 = add r6 r7\n set s1 r8\n",
        "",
        _lion,
    ),
    "ftrl": Optimizer(
        3,
        only_rate,
        """
        r0 = square g
        r1 = add s1 r0
        r2 = sqrt r1
        r3 = add s2 g
        r4 = sqrt s1
        r5 = sub r2 r4
        r6 = div r5 h0
        r7 = mul r6 s0
        r8 = sub r3 r7
        r9 = min r8 {0.01}
        r10 = max r9 {-0.01}
        r11 = sub r10 r8
        r12 = div r2 h0
        r13 = add r12 {0.02}
        r14 = div r11 r13
        set s0 r14
        set s1 r1
        set s2 r8
        """,
        "",
        _ftrl,
        first_slot=0.1,
    ),
    "moving_average": Optimizer(
        2,
        only_rate,
        "r0 = mul h0 g\n r1 = sub s0 r0\n set s0 r1\n"
        "r2 = mul s1 {0.99}\n r3 = mul r1 {0.01}\n r4 = add r2 r3\n set s1 r4\n",
        "",
        _average,
    ),
    "weight_decay": Optimizer(
        1,
        lambda rate, t: [1 - rate],
        "r0 = mul s0 h0\n r1 = mul g {0.1}\n r2 = sub r0 r1\n set s0 r2\n",
        "decay s0 h0",
        _weight_decay,
    ),
}
