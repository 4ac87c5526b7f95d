"""The settings of islands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from parallax.base.errors import ConfigError
from parallax.plans.half_precision import BFLOAT16
from parallax.settings import checks
from parallax.settings.options import setting


@checks.apply_rules
@dataclass(frozen=True)
class Islands:
    """Islands: teams of workers that train by themselves, and are averaged at meetings (docs/islands.md).

    Attributes:
        every: updates between two meetings.
        outer_rate: the rate at which the centre follows the mean of the islands.
        outer_momentum: the centre's, Nesterov's.
        pull: how far an island moves to the centre: 1, to its values.
        simultaneous: move islands and centre at once, by their values before the meeting.
        count: cut the workers into so many islands where the resource file names none.
        wire_dtype: `bfloat16`: islands send each other rounded differences from the centre, which is float32 as ever.

    Raises:
        ConfigError: when a value breaks its rule.
    """

    every: int = setting(32, rule=checks.number)
    outer_rate: float = setting(0.7, rule=partial(checks.between, least=0, most=2, has_least=False))
    outer_momentum: float = setting(0.9, rule=partial(checks.between, least=0, most=1, has_most=False))
    pull: float = setting(1.0, rule=partial(checks.between, least=0, most=1, has_least=False))
    simultaneous: bool = setting(False, rule=checks.truth)
    count: int | None = setting(None, rule=partial(checks.number_or_none, least=2))
    wire_dtype: str | None = setting(None, rule=checks.optional(partial(checks.one_of, known=(BFLOAT16,))))

    def __post_init__(self) -> None:
        if self.simultaneous and self.pull == 1.0:
            raise ConfigError(
                "simultaneous moves islands and centre by `pull`, which must be below 2 / (islands + 1), got 1.0. Set, "
                "for example, pull=0.3."
            )

    @staticmethod
    def of_text(text: str) -> Islands:
        """Reads settings as in `every=8,pull=0.5`; a name alone is True."""
        found: dict[str, object] = {}
        for word in text.split(","):
            name, _, value = word.strip().partition("=")
            if name in found:
                raise ConfigError(f"islands must not repeat a setting, got {name!r} twice in {text!r}.")
            found[name] = _of_word(name, value or "true")
        return Islands(**found)  # type: ignore[arg-type]  # checked there


def _of_word(name: str, value: str) -> object:
    """A value of `Islands` on the command line."""
    if name == "wire_dtype":
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return int(value) if value.isdecimal() and name in ("every", "count") else float(value)
    except ValueError as error:
        raise ConfigError(
            f"{name} in islands must be a number, got {value!r}. For example: every=8,pull=0.5."
        ) from error
