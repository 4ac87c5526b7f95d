"""The breaks of `python -m ops.mutants`, which runs apart, each stand for text that the sources have."""

import pytest

from ops.mutants import MUTANTS, ROOT, Mutant, problem_of


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda one: one.name)
def test_a_break_applies(mutant: Mutant) -> None:
    assert not problem_of(mutant, ROOT)
