"""Parallax: data-parallel training of TensorFlow graphs, each variable by the route that suits its gradients.

sess, num_workers, worker_id, num_replicas_per_worker = parallax.parallel_run(graph, resource_file)

Its names are imported when they are first used, so that no process loads what it does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from parallax.base.after_import import after_import

if TYPE_CHECKING:
    from parallax.base.errors import (
        CheckpointError,
        ConfigError,
        GraphError,
        GuardError,
        LaunchError,
        ParallaxError,
        PlanError,
        ResourceFileError,
        SessionError,
        TransformError,
    )
    from parallax.entry.api import parallel_run, plan
    from parallax.entry.partitioner import get_partitioner
    from parallax.functions.function import function
    from parallax.graph import shard
    from parallax.report.logger import log
    from parallax.settings.config import Config, ParallaxConfig
    from parallax.settings.islands import Islands
    from parallax.settings.parts import (
        CheckPointConfig,
        CommunicationConfig,
        MPIConfig,
        ProfileConfig,
        PSConfig,
        ReplanConfig,
        RestartConfig,
        TableConfig,
    )
    from parallax.settings.variables import Variable

__all__ = [
    "CheckPointConfig",
    "CheckpointError",
    "CommunicationConfig",
    "Config",
    "ConfigError",
    "GraphError",
    "GuardError",
    "Islands",
    "LaunchError",
    "MPIConfig",
    "PSConfig",
    "ParallaxConfig",
    "ParallaxError",
    "PlanError",
    "ProfileConfig",
    "ReplanConfig",
    "RestartConfig",
    "TableConfig",
    "ResourceFileError",
    "SessionError",
    "TransformError",
    "Variable",
    "function",
    "get_partitioner",
    "log",
    "parallel_run",
    "plan",
    "shard",
]

_MODULE_BY_NAME = {
    "Config": "settings.config",
    "ParallaxConfig": "settings.config",
    "Variable": "settings.variables",
    "Islands": "settings.islands",
    "function": "functions.function",
    "get_partitioner": "entry.partitioner",
    "log": "report.logger",
    "parallel_run": "entry.api",
    "plan": "entry.api",
}
_SHARD = "graph.shard"  # a module: users call shard.shard


def __getattr__(name: str) -> Any:
    """Imports a public name from the module that has it (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "shard":
        return import_module(f"{__name__}.{_SHARD}")
    module = _MODULE_BY_NAME.get(name, "base.errors" if name.endswith("Error") else "settings.parts")
    value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _record_gradients() -> None:
    """From here on it is remembered which gradients a script takes, whichever of both it imported first."""
    import_module(f"{__name__}.analysis.reading.construction.record").install()


after_import("tensorflow", _record_gradients)
