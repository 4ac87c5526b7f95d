"""Races in the twin of a cluster: maps the cluster's name to the model's sizes and the rate of the links."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.bench.race.models import model_of
from ops.bench.race.models.twin import Twin
from ops.twin.clusters import CLUSTERS, DILATION, SLOWER
from ops.twin.networks import network_of

MODEL = "twin"


def twin_sizes(cluster: str, network: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the sizes of the twin: the cluster's for this network, overridden by `given`.

    Raises:
        ValueError: the cluster has no pace for the network.
    """
    paces = CLUSTERS[cluster].paces
    if network not in paces:
        raise ValueError(f"On accelerators of {cluster} a model must be one of {', '.join(paces)}, got {network!r}.")
    pace = paces[network]
    return {
        "network": network,
        "step_s": round(pace.step_s(network_of(network).units_of_example), 6),
        "batch_size": pace.batch,
        "dilation": float(DILATION[network]),
        "divisor": SLOWER // DILATION[network],
        **given,
    }


def twin_of(model: str, sizes: Mapping[str, Any]) -> Twin | None:
    """Returns the model if it is a twin, else None."""
    network = model_of(model, **sizes)
    return network if isinstance(network, Twin) else None


def has_losses(model: str, sizes: Mapping[str, Any]) -> bool:
    """Returns whether the model computes losses, so that they can be compared."""
    twin = twin_of(model, sizes)
    return twin is None or twin.values != "zeros"


def slowed(rate_bytes_per_s: float, sizes: Mapping[str, Any]) -> int:
    """Returns the rate of a link in the twin: the real rate over the dilation of time and the divisor of bytes."""
    return round(rate_bytes_per_s / float(sizes["dilation"] * sizes["divisor"]))
