"""What programs say of missed updates holds for the numbers that they compute."""

import keras
import numpy as np
import pytest

from tests.analysis.reading.by_row import by_row, keras_step

KERAS = keras.optimizers
BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum}
UNARY = {"sqrt": np.sqrt, "square": np.square, "abs": np.abs, "neg": np.negative, "sign": np.sign}


def run(program, states, gradient, scalars):
    """A program's arithmetic, in double: (the states after it, what its last lines say)."""
    known = {f"s{n}": value for n, value in enumerate(states)} | {f"h{n}": value for n, value in enumerate(scalars)}
    known["g"] = gradient
    after, lines = list(states), []

    def value(operand):
        return float.fromhex(operand[2:]) if operand.startswith("c:") else known[operand]

    for words in map(str.split, program.splitlines()[2:]):
        if words[0] == "set":
            after[int(words[1][1:])] = value(words[2])
        elif words[0] in ("decay", "move"):
            lines.append(
                (words[0], int(words[1][1:]), *map(value, words[2 : 4 if words[0] == "move" else 3]), words[4:])
            )
        else:
            operands = [value(word) for word in words[3:]]
            known[words[0]] = {**BINARY, **UNARY}[words[2]](*operands)
    return after, lines


def counts(program):
    return [int(line.split()[1]) for line in program.splitlines()[:2]]


@pytest.mark.parametrize(
    "optimizer",
    [
        pytest.param(lambda: KERAS.Adam(0.1), id="Adam"),
        pytest.param(lambda: KERAS.Adam(0.1, amsgrad=True), id="AMSGrad"),
        pytest.param(lambda: KERAS.AdamW(0.1), id="AdamW"),
        pytest.param(lambda: KERAS.Nadam(0.1), id="Nadam"),
        pytest.param(lambda: KERAS.Adamax(0.1), id="Adamax"),
        pytest.param(lambda: KERAS.SGD(0.1, momentum=0.9, nesterov=True), id="nesterov"),
        pytest.param(lambda: KERAS.RMSprop(0.1, momentum=0.9), id="RMSprop"),
    ],
)
def test_a_state_decays_or_moves_within_its_bound(optimizer):
    _, table = by_row(keras_step(optimizer()))
    states, scalars = counts(table.program)
    random = np.random.default_rng(0)
    made = random.uniform(0.1, 2, [states, 100])
    made, _ = run(table.program, made, random.normal(size=100), random.uniform(0.1, 0.5, scalars))
    numbers = random.uniform(0.1, 0.5, scalars)
    after, lines = run(table.program, made, np.zeros(100), numbers)
    assert sorted(line[1] for line in lines) == [*range(states)]
    for kind, state, factor, *bound, leaves in lines:
        rest = np.abs(after[state] - factor * made[state])
        assert np.all(rest <= (bound[0] if kind == "move" else 0) * (1 + 1e-9) + 1e-12 * np.abs(made[state]))
        for leaf in leaves:
            name, lowest, highest = leaf.split(":")
            _check_degrees(table.program, made, numbers, (name[0], int(name[1:])), (float(lowest), float(highest)))


def _check_degrees(program, made, numbers, leaf, degrees):
    """With a leaf times a, the bound is between a^highest and a^lowest times what it was."""
    states, scalars = [np.array(one) for one in made], numbers.copy()
    (states if leaf[0] == "s" else scalars)[leaf[1]] *= 0.25
    bounds = []
    for given in ((made, numbers), (states, scalars)):
        _, lines = run(program, given[0], np.zeros(100), given[1])
        bounds.append(next(line[3] for line in lines if line[0] == "move"))
    assert np.all(bounds[1] <= 0.25 ** degrees[0] * bounds[0] * (1 + 1e-9))
    assert np.all(bounds[1] >= 0.25 ** degrees[1] * bounds[0] * (1 - 1e-9))
