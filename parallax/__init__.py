"""Parallax: data-parallel training of TensorFlow graphs, each variable by the route that suits its gradients.

sess, num_workers, worker_id, num_replicas_per_worker = parallax.parallel_run(graph, resource_file)
"""

import sys

from parallax.api import parallel_run
from parallax.compat import shard
from parallax.compat.partitioner import get_partitioner
from parallax.errors import (
    CheckpointError,
    ConfigError,
    GraphError,
    LaunchError,
    ParallaxError,
    PlanError,
    ResourceFileError,
    SessionError,
    TransformError,
)
from parallax.logger import log
from parallax.settings.config import (
    CheckPointConfig,
    CommunicationConfig,
    Config,
    MPIConfig,
    ParallaxConfig,
    ProfileConfig,
    PSConfig,
    ReplanConfig,
)

__all__ = [
    "CheckPointConfig",
    "CommunicationConfig",
    "CheckpointError",
    "Config",
    "ConfigError",
    "GraphError",
    "LaunchError",
    "MPIConfig",
    "PSConfig",
    "ParallaxConfig",
    "ParallaxError",
    "PlanError",
    "ProfileConfig",
    "ReplanConfig",
    "ResourceFileError",
    "SessionError",
    "TransformError",
    "get_partitioner",
    "log",
    "parallel_run",
    "shard",
]

if "tensorflow" in sys.modules:  # the script has TensorFlow already: what it builds from here on is recorded
    from parallax.analysis.reading import record

    record.install()
