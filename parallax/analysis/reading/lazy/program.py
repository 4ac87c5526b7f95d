"""The program of a table's update as text: one op a line, registers that are written once.

    states 2
    scalars 1
    r0 = mul s1 c:0x1.cccccc0000000p-1
    r1 = add r0 g
    r2 = mul r1 h0
    r3 = sub s0 r2
    set s0 r3
    set s1 r1

`sI` is state I before the update, `g` the element of the gradient, or `gI` that of gradient I of several, `hI` scalar
I, `c:` a constant. All sets take effect together. The effects of missed updates follow where they are known: `decay`
and `move` (`missed`).
"""

from __future__ import annotations

from collections.abc import Sequence

from parallax.analysis.reading.lazy.expressions import (
    CONSTANT,
    GRADIENT,
    LEAVES,
    SCALAR,
    STATE,
    Expression,
    in_order,
    leaves_of,
)
from parallax.analysis.reading.lazy.missed_updates import Decay, Movement


class _Text:
    """Lines under construction, and the operand of each expression that has one."""

    def __init__(self, states: Sequence[str], scalars: Sequence[str]) -> None:
        self.lines = [f"states {len(states)}", f"scalars {len(scalars)}"]
        self._states, self._scalars = list(states), list(scalars)
        self._registers: dict[Expression, str] = {}

    def operand(self, expression: Expression) -> str:
        """The operand of an expression whose registers are computed in preceding lines."""
        for one in in_order([expression]):
            if one.op not in LEAVES and one not in self._registers:
                register = f"r{len(self._registers)}"
                self.lines.append(f"{register} = {one.op} {' '.join(map(self._name, one.inputs))}")
                self._registers[one] = register
        return self._name(expression)

    def _name(self, one: Expression) -> str:
        if one.op == STATE:
            return f"s{self._states.index(one.value)}"
        if one.op == SCALAR:
            return f"h{self._scalars.index(one.value)}"
        if one.op == GRADIENT:
            return "g" if one.value is None else f"g{one.value}"
        return f"c:{one.value.hex()}" if one.op == CONSTANT else self._registers[one]

    def degrees(self, move: Movement) -> list[str]:
        return [
            f"{self._name(leaf)}:{lowest:g}:{highest:g}"
            for leaf, (lowest, highest) in sorted(move.degrees.items(), key=lambda item: self._name(item[0]))
        ]


def scalars_of(values: Sequence[Expression]) -> tuple[str, ...]:
    """The scalar inputs of the new values of states, in the order of the program's."""
    return tuple(one.value for one in leaves_of(list(values)) if one.op == SCALAR)


def program_text(
    states: Sequence[str],
    scalars: Sequence[str],
    values: Sequence[Expression],
    missed: Sequence[Decay | Movement],
) -> str:
    """The program that computes the new values of states.

    Args:
        states: variables; the table first.
        scalars: `scalars_of(values)`.
        values: the new value of each state.
        missed: the effect of an update without a gradient on each state; empty where it is unknown for some.
    """
    text = _Text(states, scalars)
    operands = [text.operand(value) for value in values]
    sets = [f"set s{number} {operand}" for number, operand in enumerate(operands) if operand != f"s{number}"]
    text.lines += sets
    known = []
    for number, one in enumerate(missed):
        if isinstance(one, Decay):
            known.append(f"decay s{number} {text.operand(one.factor)}")
        else:
            bound = text.operand(one.bound)
            known.append(" ".join([f"move s{number} {text.operand(one.factor)} {bound}", *text.degrees(one)]))
    return "\n".join([*text.lines, *known]) + "\n"
