"""Lengths of axes as polynomials over symbols, such as 2 * batch * time + 1, and the arithmetic of ops on them.

A symbol represents the length of an axis in the program of one process. Comparing lengths shows which axis of a result
is which axis of an input. A length is computed from its polynomial only where a loop reads it from another iteration.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

_MOST_SIMPLE = 1 << 16
"""Cache size for integers and symbols, of which most lengths consist."""
_Terms = tuple[tuple[tuple[str, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Length:
    """A polynomial with integer coefficients.

    Attributes:
        terms: (symbols of a product, sorted, with repetition; its coefficient), sorted; no coefficient is 0.
    """

    terms: _Terms = ()

    @staticmethod
    @lru_cache(_MOST_SIMPLE)
    def of(value: int | str) -> Length:
        """An integer, or a symbol."""
        if isinstance(value, str):
            return Length((((value,), 1),))
        return Length((((), int(value)),)) if value else Length()

    @property
    def number(self) -> int | None:
        """The value as an integer; None where it contains a symbol."""
        if not self.terms:
            return 0
        return self.terms[0][1] if len(self.terms) == 1 and not self.terms[0][0] else None

    def __add__(self, other: Length) -> Length:
        return _collect([*self.terms, *other.terms])

    def __sub__(self, other: Length) -> Length:
        return self + other * Length.of(-1)

    def __mul__(self, other: Length) -> Length:
        return _collect((tuple(sorted(a + b)), m * n) for a, m in self.terms for b, n in other.terms)

    def divide(self, other: Length) -> Length | None:
        """The quotient, where the division is known to be exact; else None."""
        if not other.terms:
            return None
        quotient, rest = Length(), self
        divisor, by = max(other.terms, key=_rank_term)
        while rest.terms:
            product, coefficient = max(rest.terms, key=_rank_term)
            left = list(product)
            for symbol in divisor:
                if symbol not in left:
                    return None
                left.remove(symbol)
            if coefficient % by:
                return None
            part = Length(((tuple(left), coefficient // by),))
            quotient, rest = quotient + part, rest - part * other
        return quotient

    def has_symbol_of(self, prefix: str) -> bool:
        """Whether a symbol begins with a prefix."""
        return any(symbol.startswith(prefix) for symbols, _ in self.terms for symbol in symbols)

    def __str__(self) -> str:
        return " + ".join("*".join((str(n), *symbols)) for symbols, n in self.terms) or "0"


def _rank_term(term: tuple[tuple[str, ...], int]) -> tuple[int, tuple[str, ...]]:
    """The order of terms in which a division proceeds: by degree, then by symbols."""
    symbols, _ = term
    return len(symbols), symbols


ONE = Length.of(1)


def split_symbol(symbol: str) -> tuple[str, int | None]:
    """(the tensor, its axis) of a symbol `tensor[axis]`; (the symbol, None) for any other one, such as a batch."""
    tensor, _, axis = symbol.rpartition("[")
    return (tensor, int(axis[:-1])) if axis.endswith("]") and axis[:-1].isdigit() else (symbol, None)


def multiply(lengths: Iterable[Length]) -> Length:
    """The product of some lengths; 1 for none."""
    product = ONE
    for length in lengths:
        product = product * length
    return product


def broadcast(one: Length, other: Length) -> Length | None:
    """The length of an axis to which two axes are broadcast; None where it is undecidable."""
    if one == other or other == ONE:
        return one
    if one == ONE:
        return other
    if one.number is not None:  # the other axis has a length other than 1, or is broadcast to it
        return one
    return other if other.number is not None else None


def _collect(terms: Iterable[tuple[tuple[str, ...], int]]) -> Length:
    factor_by_symbols: dict[tuple[str, ...], int] = {}
    for symbols, factor in terms:
        factor_by_symbols[symbols] = factor_by_symbols.get(symbols, 0) + factor
    return Length(tuple(sorted((symbols, n) for symbols, n in factor_by_symbols.items() if n)))
