"""N workers against one process: what each side runs, when two values count as equal, and the table that says so."""

from parallax.runtime.verify.judging import difference

__all__ = ["difference"]
