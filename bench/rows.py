"""One row of a comparison: the same work on each system."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

HIGHER = ("records/s", "jobs/s")
"""Units of which more is better; of all others less is."""


@dataclass(slots=True)
class Row:
    section: str
    label: str
    unit: str
    values: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """System → why it has no value."""

    @property
    def more_is_better(self) -> bool:
        return self.unit in HIGHER

    def medians(self) -> dict[str, float]:
        return {name: median(values) for name, values in self.values.items()}

    def ratio(self) -> float | None:
        """How many times better the best form of Topics is than the best other system; below 1 it is worse."""
        ours = [value for name, value in self.medians().items() if name.startswith("Topics")]
        others = [value for name, value in self.medians().items() if not name.startswith("Topics")]
        if not ours or not others:
            return None
        if self.more_is_better:
            return max(ours) / max(others)
        return min(others) / min(ours) if min(ours) and min(others) else None
