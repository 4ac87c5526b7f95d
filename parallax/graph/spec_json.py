"""A graph's spec and the sources of its gradients as JSON, both ways: so the launcher's reach the workers.

Whoever reads is of the version that wrote; no file holds it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from parallax.errors import GraphError
from parallax.graph.spec import GradientSource, GraphSpec
from parallax.strict import checked_value, read_json


@dataclass(frozen=True, slots=True)
class _SpecAndSources:
    spec: GraphSpec
    sources: tuple[GradientSource, ...]


def spec_to_json(spec: GraphSpec, sources: Sequence[GradientSource]) -> str:
    """A spec, and all sources in their order."""
    return json.dumps({"spec": asdict(spec), "sources": [asdict(source) for source in sources]})


def spec_from_json(text: str) -> tuple[GraphSpec, tuple[GradientSource, ...]]:
    """What `spec_to_json` was given.

    Raises:
        GraphError: when it is something else.
    """
    raw = read_json(text, GraphError, "the job's message", "a graph's spec")
    try:
        found = checked_value(raw, _SpecAndSources)
    except ValueError as error:
        raise GraphError(f"A graph's spec must be as the launcher wrote it, and {error}.") from error
    if json.loads(spec_to_json(found.spec, found.sources)) != raw:
        raise GraphError("A graph's spec must have every field, as the launcher wrote it, and some are missing.")
    return found.spec, found.sources
