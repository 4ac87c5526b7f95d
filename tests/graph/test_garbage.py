"""When Python searches for reference cycles."""

import gc

import pytest

from parallax.graph.garbage import without_collections


@without_collections
def searched() -> bool:
    return gc.isenabled()


@without_collections
def searched_within() -> bool:
    searched()
    return gc.isenabled()


@without_collections
def failing() -> None:
    raise ValueError("failed")


def test_no_cycles_are_searched_for_during_a_call_and_all_calls_within_it() -> None:
    assert gc.isenabled()
    assert not searched() and not searched_within()
    assert gc.isenabled()


def test_cycles_are_searched_for_again_after_a_failure() -> None:
    with pytest.raises(ValueError, match="failed"):
        failing()
    assert gc.isenabled()


def test_a_process_that_never_searches_for_cycles_goes_on_not_to() -> None:
    gc.disable()
    try:
        assert not searched()
        assert not gc.isenabled()
    finally:
        gc.enable()
