"""What came of tries, counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

#: What may come of a try, and what is a defect.
FINE = ("fine", "told")
DEFECTS = ("traceback", "hang", "memory", "difference", "executed", "outside")


@dataclass(frozen=True)
class Try:
    """One of them."""

    what: str
    how: str
    why: str = ""
    weight: int = 1
    """How many it counts for: the kills of a run that was killed several times."""


class Table:
    """Outcomes by campaign, and the seconds of CPU that they took."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self.seconds: dict[str, float] = {}

    def add(self, campaign: str, one: Try, seconds: float) -> None:
        """Count a try."""
        self.counts.setdefault(campaign, Counter())[one.how] += one.weight
        self.seconds[campaign] = self.seconds.get(campaign, 0.0) + seconds

    def tried(self, campaign: str) -> int:
        """How many there were."""
        return sum(self.counts.get(campaign, Counter()).values())

    def rows(self) -> list[tuple[str, ...]]:
        """The table that is printed, with its head."""
        head = ("", "tried", "fine, equal", "one sentence", *DEFECTS, "CPU s")
        rows = [
            (name, str(self.tried(name)), *(str(found[how]) for how in (*FINE, *DEFECTS)),
             f"{self.seconds[name]:.0f}")
            for name, found in self.counts.items()
        ]  # fmt: skip
        return [head, *rows]

    @property
    def defects(self) -> int:
        """How many there are in all."""
        return sum(found[how] for found in self.counts.values() for how in DEFECTS)
