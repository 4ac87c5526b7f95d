"""Compares N workers with one process: the runs of both sides, the rule of equality, and the table of results."""

from parallax.runtime.verify.verdicts import difference

__all__ = ["difference"]
