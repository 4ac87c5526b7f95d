"""Parses and formats link rates: bits per second as in a resource file (`200mbit`), or bytes per second (`25MB`)."""

from __future__ import annotations

import re
from fractions import Fraction

from parallax.cluster.resource_file import parse_bandwidth

_BYTES = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([kKMGT]?)B(?:/s)?")
_BYTES_BY_PREFIX = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_rate(text: str) -> int:
    """Parses a rate; returns bytes per second.

    Raises:
        ValueError: the text is not a rate above 0.
    """
    match = _BYTES.fullmatch(text)
    rate_bytes_per_s = int(Fraction(match[1]) * _BYTES_BY_PREFIX[match[2]]) if match else parse_bandwidth(text)
    if not rate_bytes_per_s:
        raise ValueError(f"a rate is bits per second like 200mbit or 1gbit, or bytes like 25MB; received {text!r}")
    return rate_bytes_per_s


def parse_host_rate(text: str) -> tuple[str, int]:
    """Parses `host3=50mbit`; returns the host and bytes per second.

    Raises:
        ValueError: the text has another form.
    """
    name, equals, rate = text.partition("=")
    if not name or not equals:
        raise ValueError(f"a host's rate is written like host3=50mbit; received {text!r}")
    return name, parse_rate(rate)


def mbit(rate_bytes_per_s: float) -> str:
    """Formats a rate for a resource file."""
    return f"{8 * rate_bytes_per_s / 1e6:.3f}".rstrip("0").rstrip(".") + "mbit"
