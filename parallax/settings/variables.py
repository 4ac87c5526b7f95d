"""User settings of single variables: one record per variable, which replaces three separate mappings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from parallax.base.errors import ConfigError
from parallax.plans.plan import ROUTES
from parallax.settings import checks
from parallax.settings.options import rule_of, setting

FIELD_BY_MAPPING = {"routes": "route", "partitions": "partitions", "touched_rows": "touched_rows"}
"""Mapping of `Config` from variable names -> the field of `Variable` that it sets."""


@checks.apply_rules
@dataclass(frozen=True)
class Variable:
    """Overrides for one variable; None leaves a setting to the plan.

    Attributes:
        route: `allreduce`, `allgather`, `alltoall` or `ps`.
        partitions: on servers.
        touched_rows: distinct rows that a worker reads in a step, where shapes do not tell.
        memory_hosts: with `memory_steps`, hosts that hold each row: 2 (the default), or 1, with which a lost host's
            rows restart from initial values.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    route: str | None = setting(None, rule=checks.optional(partial(checks.one_of, known=ROUTES)))
    partitions: int | None = setting(None, rule=checks.number_or_none)
    touched_rows: int | None = setting(None, rule=checks.number_or_none)
    memory_hosts: int | None = setting(None, rule=partial(checks.number_or_none, most=2))


_RULES = {declared.name: rule_of(declared) for declared in fields(Variable)}


def merge_mappings(variables: Mapping[str, Variable], mappings: Mapping[str, Mapping[str, Any]]) -> dict[str, Variable]:
    """Merges the settings into one record per variable.

    Args:
        variables: records, by the names of variables.
        mappings: name of a mapping, one of FIELD_BY_MAPPING -> its values, by the names of variables.

    Raises:
        ConfigError: when a record and a mapping differ, or a value violates its rule.
    """
    merged = dict(variables)
    for mapping, value_by_variable in mappings.items():
        field = FIELD_BY_MAPPING[mapping]
        for name, value in value_by_variable.items():
            _RULES[field](f"{mapping}[{name!r}]", value)
            record = merged.get(name, Variable())
            known = getattr(record, field)
            if known not in (None, value):
                raise ConfigError(
                    f"variables[{name!r}].{field} is {known!r}, but {mapping}[{name!r}] is {value!r}. Set only one."
                )
            merged[name] = replace(record, **{field: value})
    return merged
