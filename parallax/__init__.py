"""Parallax: data-parallel training of TensorFlow graphs, each variable by the route that suits its gradients.

sess, num_workers, worker_id, num_replicas_per_worker = parallax.parallel_run(graph, resource_file)
"""

import sys

from parallax import shard
from parallax.api import parallel_run
from parallax.config import (
    CheckPointConfig,
    CommunicationConfig,
    Config,
    MPIConfig,
    ParallaxConfig,
    ProfileConfig,
    PSConfig,
    ReplanConfig,
)
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
from parallax.log import log
from parallax.partitioner import get_partitioner

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
    from parallax.analysis import record

    record.install()
