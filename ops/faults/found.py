"""What the kernel tells of a process that a trial has found."""

from __future__ import annotations

from pathlib import Path


def environment_of(pid: int) -> dict[str, str]:
    """The variables that a process was started with; OSError when it is gone."""
    words = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(word.split("=", 1) for word in words if "=" in word)


def words_of(pid: int) -> str:
    """Its command line; OSError when it is gone."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def parent_of(pid: int) -> int:
    """The process that has started it, or has taken it over; OSError when it is gone."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
