"""An emulated cluster on one machine, for tests and measurements; Linux, and root."""

from ops.lab.lab import Lab, Listening, why_not

__all__ = ["Lab", "Listening", "why_not"]
