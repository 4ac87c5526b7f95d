"""Parallax: data-parallel training of TensorFlow graphs, each variable by the route that suits its gradients.

sess, num_workers, worker_id, num_replicas_per_worker = parallax.parallel_run(graph, resource_file)
"""

import sys

from parallax.api import parallel_run
from parallax.config import Config
from parallax.errors import (
    ConfigError,
    GraphError,
    LaunchError,
    ParallaxError,
    PlanError,
    ResourceFileError,
    SessionError,
    TransformError,
)

__all__ = [
    "Config",
    "ConfigError",
    "GraphError",
    "LaunchError",
    "ParallaxError",
    "PlanError",
    "ResourceFileError",
    "SessionError",
    "TransformError",
    "parallel_run",
]

if "tensorflow" in sys.modules:  # the script has TensorFlow already: what it builds from here on is recorded
    from parallax.analysis import record

    record.install()
