"""What islands and their centre have after meetings, against the formulas; all islands are in this process."""

import numpy as np
import pytest

from parallax.plans.island_plan import IslandPlan
from parallax.runtime.islands.centre import Centre, Packing, averaging

KINDS = (((3, 2), "float32"), ((), "float64"), ((5,), "float32"), ((0, 4), "float64"))


def plan(count=3, rate=1.0, momentum=0.0, pull=1.0, simultaneous=False, wire=None):
    return IslandPlan(count, 4, rate, momentum, pull, simultaneous, wire)


class Islands:
    """Some islands, which meet in threads; their values are those of a job from `seed`."""

    def __init__(self, terms, packing, seed=0):
        self.terms, self.draw = terms, np.random.default_rng(seed)
        self.centres = [Centre(terms, packing) for _ in range(terms.count)]
        self.own = [packing.zeros() for _ in self.centres]
        self.move()
        for dtype, mean in self.mean().items():
            for centre in self.centres:
                centre.values[dtype][:] = mean

    def move(self, scale=1.0):
        for one in self.own:
            for values in one.values():
                values += scale * self.draw.standard_normal(values.shape)

    def mean(self):
        return {dtype: np.mean([one[dtype] for one in self.own], 0) for dtype in self.own[0]}

    @property
    def centre(self):
        return self.centres[0].values

    def meet(self):
        contributions = [centre.contribute(own) for centre, own in zip(self.centres, self.own, strict=True)]
        for centre, own in zip(self.centres, self.own, strict=True):
            centre.take(own, {dtype: sum(one[dtype] for one in contributions) for dtype in own})


def distance(found, wanted):
    return max(float(np.abs(found[dtype] - wanted[dtype]).max(initial=0)) for dtype in wanted)


def scale_of(values):
    return max(float(np.abs(one).max(initial=0)) for one in values.values())


def test_packing_gives_each_variable_its_place():
    packing, draw = Packing(KINDS), np.random.default_rng(1)
    values = [draw.standard_normal(shape).astype(dtype) for shape, dtype in KINDS]
    flat = packing.pack(values)
    assert {dtype: one.size for dtype, one in flat.items()} == {"float32": 11, "float64": 1}
    for view, value in zip(packing.views(flat), values, strict=True):
        assert view.dtype == value.dtype and np.array_equal(view, value)


def test_outer_sgd_and_pull_of_one_are_the_mean():
    islands = Islands(plan(), Packing(KINDS))
    for _ in range(3):
        islands.move()
        mean = islands.mean()
        islands.meet()
        for own in islands.own:
            assert distance(own, mean) <= 1e-6 * scale_of(mean)
            assert distance(own, islands.centre) == 0


def test_nesterov_follows_its_formula():
    islands = Islands(plan(rate=0.7, momentum=0.9), Packing(KINDS))
    momentum = {dtype: np.zeros_like(one) for dtype, one in islands.centre.items()}
    for _ in range(4):
        islands.move()
        centre, mean = {dtype: one.copy() for dtype, one in islands.centre.items()}, islands.mean()
        islands.meet()
        for dtype, before in centre.items():
            away = before - mean[dtype]
            momentum[dtype] = 0.9 * momentum[dtype] + away
            wanted = before - 0.7 * (away + 0.9 * momentum[dtype])
            assert np.allclose(islands.centre[dtype], wanted, rtol=0, atol=1e-6 * max(1, np.abs(wanted).max(initial=0)))


@pytest.mark.parametrize(("pull", "rate"), [(0.3, 0.5), (0.9, 1.0), (1.0, 0.25)])
def test_centre_first_contracts_by_both(pull, rate):
    islands = Islands(plan(rate=rate, pull=pull), Packing(KINDS))
    islands.move()
    away = {dtype: mean - islands.centre[dtype] for dtype, mean in islands.mean().items()}
    islands.meet()
    left = {dtype: mean - islands.centre[dtype] for dtype, mean in islands.mean().items()}
    wanted = {dtype: (1 - pull) * (1 - rate) * one for dtype, one in away.items()}
    assert distance(left, wanted) <= 1e-6 * scale_of(away)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_simultaneous_keeps_the_sum_and_contracts(count):
    pull = 0.95 * 2 / (count + 1)
    islands = Islands(plan(count, pull=pull, simultaneous=True), Packing(KINDS))
    islands.move()
    sums = {dtype: sum(one[dtype] for one in islands.own) + islands.centre[dtype] for dtype in islands.centre}
    away = {dtype: mean - islands.centre[dtype] for dtype, mean in islands.mean().items()}
    apart = {dtype: islands.own[0][dtype] - islands.own[1][dtype] for dtype in away}
    islands.meet()
    after = {dtype: sum(one[dtype] for one in islands.own) + islands.centre[dtype] for dtype in islands.centre}
    left = {dtype: mean - islands.centre[dtype] for dtype, mean in islands.mean().items()}
    assert distance(after, sums) <= 1e-6 * scale_of(sums)
    assert distance(left, {dtype: (1 - pull * (1 + count)) * one for dtype, one in away.items()}) <= 1e-6 * scale_of(
        away
    )
    pairs = {dtype: islands.own[0][dtype] - islands.own[1][dtype] for dtype in away}
    assert distance(pairs, {dtype: (1 - pull) * one for dtype, one in apart.items()}) <= 1e-6 * scale_of(apart)


def test_below_the_bound_islands_come_together_and_above_it_they_part():
    found = {}
    for share in (0.95, 1.05):
        islands = Islands(plan(3, pull=share * 0.5, simultaneous=True), Packing((((40,), "float64"),)))
        islands.move()
        for _ in range(400):
            islands.meet()
        found[share] = distance(islands.mean(), islands.centre)
    assert found[0.95] < 1e-12 and found[1.05] > 1e3


def test_variables_without_a_gradient_take_the_mean():
    terms = averaging(plan(rate=0.7, momentum=0.9, pull=0.3))
    assert terms == plan() and terms.joins
    assert not plan(pull=0.5).joins and not plan(pull=0.3, simultaneous=True).joins


def test_differences_in_bfloat16_are_rounded_and_the_centre_is_not():
    exact, rounded = (Islands(plan(rate=0.7, momentum=0.9, wire=wire), Packing(KINDS)) for wire in (None, "bfloat16"))
    for islands in (exact, rounded):
        islands.move()
    furthest = max(np.abs(one["float32"] - exact.centre["float32"]).max() for one in exact.own)
    for islands in (exact, rounded):
        islands.meet()
    assert distance({"float64": rounded.centre["float64"]}, {"float64": exact.centre["float64"]}) == 0
    error = distance({"float32": rounded.centre["float32"]}, {"float32": exact.centre["float32"]})
    assert 0 < error <= 0.7 * 1.9 * 2 * 2**-8 * furthest  # of the summands, and of the sum
    contributions = rounded.centres[0].contribute({dtype: one + 1 / 3 for dtype, one in rounded.own[0].items()})
    assert not (contributions["float32"].view(np.uint32) & 0xFFFF).any()


def test_what_rounding_loses_stays_with_islands_that_do_not_join():
    islands = Islands(plan(2, pull=0.3, simultaneous=True, wire="bfloat16"), Packing((((40,), "float32"),)))
    islands.move()
    before = sum(one["float32"] for one in islands.own) + islands.centre["float32"]
    islands.meet()
    after = sum(one["float32"] for one in islands.own) + islands.centre["float32"]
    assert np.abs(after - before).max() <= 2**-8 * np.abs(before).max()  # the rounding of sums alone
    for _ in range(60):
        islands.meet()
    assert distance(islands.own[0], islands.centre) <= 1e-5
