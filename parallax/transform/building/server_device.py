"""How TensorFlow names the servers that ops are placed on."""

from __future__ import annotations


def device_of(server: int) -> str:
    """TensorFlow's name of a server."""
    return f"/job:ps/task:{server}"
