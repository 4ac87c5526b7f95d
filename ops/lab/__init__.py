"""An emulated cluster on one machine, for tests and measurements. Requires Linux and root."""

from ops.lab.check import LinkSpeed
from ops.lab.hosts import Hosts, Listening
from ops.lab.lab import Lab, why_not

__all__ = ["Hosts", "Lab", "LinkSpeed", "Listening", "why_not"]
