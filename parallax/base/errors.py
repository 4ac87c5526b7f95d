"""The errors of Parallax. Each message states the rule, the value received and the remedy."""

from __future__ import annotations


class ParallaxError(Exception):
    """Base of all errors that Parallax raises on purpose."""


class ConfigError(ParallaxError):
    """A configuration value, command-line option or environment variable breaks its rule."""


class ResourceFileError(ParallaxError):
    """A resource file does not parse; the message carries file and line."""


class GraphError(ParallaxError):
    """The user's graph cannot be trained in parallel unchanged; the message names the op or variable."""


class OtherGraphError(GraphError):
    """A process of a job has built a graph of another structure than the launcher; the message names the first op."""


class PlanError(ParallaxError):
    """A plan cannot be made, or a given one does not belong to this graph, cluster or version."""


class NotEnoughMemory(PlanError):
    """No plan fits into the memory of the hosts."""


class TransformError(ParallaxError):
    """A pass left a graph that violates a postcondition; the message names the offending op."""


class SessionError(ParallaxError):
    """A fetch or feed does not belong to the user's graph, or breaks the session's conventions."""


class IdError(SessionError):
    """An id of a lookup is no row of its table.

    Attributes:
        what: the message without rank and step, which identifies ranks and starts that failed alike.
    """

    def __init__(self, message: str, what: str) -> None:
        super().__init__(message)
        self.what = what


class LaunchError(ParallaxError):
    """The job could not be started on the named machines."""


class CheckpointError(ParallaxError):
    """A checkpoint cannot be written or read, or does not fit the graph."""


class GuardError(ParallaxError):
    """State that must be equal on all workers differs; the message names it, the workers, and since when."""
