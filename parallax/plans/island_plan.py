"""The islands of a job in a plan: teams of workers that train by themselves, and are averaged now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from parallax.base.strict import Amount, Count, Positive
from parallax.plans.half_precision import rows_travel_as

Fraction = Annotated[float, Meta(gt=0.0, le=1.0)]


@dataclass(frozen=True, slots=True)
class IslandPlan:
    """The islands of a job, each of equally many consecutive workers, and the terms of their meetings.

    With x_i an island's value of a dense variable, c the centre, p the number of islands, and d = c - mean_i x_i:

        m <- outer_momentum m + d;  c <- c - outer_rate (d + outer_momentum m);  x_i <- x_i - pull (x_i - c)

    and with `simultaneous`, for s_i = pull (x_i - c):  x_i <- x_i - s_i;  c <- c + sum_i s_i.

    Attributes:
        count: the number of islands, p.
        every: updates between two meetings.
        outer_rate: of the centre.
        outer_momentum: of the centre, Nesterov's.
        pull: how far an island moves to the centre at a meeting.
        simultaneous: whether islands and centre move by each other's values before the meeting.
        wire_dtype: the element type in which float32 differences from the centre travel between islands; None for its
            own. What each island's rounding and that of the sum lose of a difference is lost where islands take the
            centre's values.
        meeting_bytes: that an island sends to others at a meeting, at most; None where touched rows are unknown.
        meeting_s: predicted seconds of a meeting; None without a cluster profile.
    """

    count: Annotated[int, Meta(ge=2)]
    every: Positive
    outer_rate: Amount
    outer_momentum: Annotated[float, Meta(ge=0.0, lt=1.0)]
    pull: Fraction
    simultaneous: bool
    wire_dtype: Annotated[str, Meta(pattern="^bfloat16$")] | None = None
    meeting_bytes: Count | None = None
    meeting_s: Amount | None = None

    def travels_as(self, dtype: str) -> str:
        """The element type in which differences of a type travel."""
        return rows_travel_as(dtype, self.wire_dtype)

    @property
    def joins(self) -> bool:
        """Whether all islands have the centre's values after a meeting."""
        return self.pull == 1.0 and not self.simultaneous
