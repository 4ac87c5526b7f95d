"""A graph's spec and the sources of its gradients as JSON, both ways: so the launcher's reach the workers.

Whoever reads is of the version that wrote; no file holds it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from parallax.graph.spec import GradientSource, GraphSpec, Part, Slot, VariableClass, VariableSpec
from parallax.types import JsonObject


def spec_to_json(spec: GraphSpec, sources: Sequence[GradientSource]) -> str:
    """A spec, and all sources in their order."""
    return json.dumps({"spec": asdict(spec), "sources": [asdict(source) for source in sources]})


def spec_from_json(text: str) -> tuple[GraphSpec, tuple[GradientSource, ...]]:
    """What `spec_to_json` was given."""
    raw = json.loads(text)
    variables = tuple(_variable(variable) for variable in raw["spec"]["variables"])
    spec = GraphSpec(**{**raw["spec"], "variables": variables, "notes": tuple(raw["spec"]["notes"])})
    return spec, tuple(_source(source) for source in raw["sources"])


def _variable(raw: JsonObject) -> VariableSpec:
    return VariableSpec(
        **{
            **raw,
            "cls": VariableClass(raw["cls"]),
            "parts": tuple(Part(**{**part, "shape": tuple(part["shape"])}) for part in raw["parts"]),
            "gradients": tuple(_source(source) for source in raw["gradients"]),
            "slots": tuple(Slot(**{**slot, "ops": tuple(slot["ops"])}) for slot in raw["slots"]),
            **{name: tuple(raw[name]) for name in ("shape", "evidence", "lookups", "updates")},
        }
    )


def _source(raw: JsonObject) -> GradientSource:
    return GradientSource(**{**raw, "outside": tuple(raw["outside"])})
