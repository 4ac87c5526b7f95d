"""Why an update of a whole table is left as it is."""

from __future__ import annotations


class NotLazyError(Exception):
    """An update cannot be made row by row; the text is a short sentence that names the op."""
