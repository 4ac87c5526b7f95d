"""Lengths of axes as polynomials: what is equal, and what divides what."""

from parallax.graph.lengths import ONE, Length, broadcast, multiply

BATCH, TIME = Length.of("batch"), Length.of("time")


def test_products_and_sums_are_equal_whatever_their_order():
    assert BATCH * TIME == TIME * BATCH
    assert BATCH * Length.of(2) + ONE == ONE + BATCH + BATCH
    assert multiply([BATCH, TIME, Length.of(3)]).divide(TIME) == BATCH * Length.of(3)


def test_a_quotient_is_known_only_where_nothing_is_left():
    assert (BATCH * Length.of(6)).divide(Length.of(3)) == BATCH * Length.of(2)
    assert (BATCH * Length.of(6)).divide(Length.of(4)) is None
    assert BATCH.divide(TIME) is None
    assert (BATCH + ONE).divide(BATCH + ONE) == ONE
    assert (BATCH + ONE).divide(Length()) is None
    assert (BATCH * TIME - BATCH).divide(TIME - ONE) == BATCH
    assert ((TIME + BATCH) * (TIME - BATCH)).divide(TIME - BATCH) == TIME + BATCH
    assert (BATCH * TIME - ONE).divide(TIME - ONE) is None
    assert Length().divide(TIME - ONE) == Length()


def test_a_number_is_known_as_such():
    assert (Length.of(3) - Length.of(3)).number == 0
    assert (BATCH - BATCH + Length.of(2)).number == 2
    assert BATCH.number is None
    assert str(BATCH * Length.of(2) + ONE) in ("1 + 2*batch", "2*batch + 1")


def test_an_axis_of_length_1_is_broadcast():
    assert broadcast(ONE, BATCH) == broadcast(BATCH, ONE) == BATCH
    assert broadcast(BATCH, TIME) is None
