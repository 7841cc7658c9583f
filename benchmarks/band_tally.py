"""Whether 90% bands hold: truths inside, what so few of them can show, how wide the bands are. A
line a level.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import binomtest

WANTED = (0.85, 0.97)  # truths inside
WIDEST = 0.12  # median half width


@dataclass
class Tally:
    """Bands with the truths that were measured."""

    rows: list[tuple[float, float, float]] = field(default_factory=list)

    def add(self, low: float | None, high: float | None, truth: float) -> None:
        """One prediction; what was refused has no band."""
        if low is not None and high is not None:
            self.rows.append((low, high, truth))

    def line(self, name: str, widest: float | None = WIDEST) -> str:
        """Counts, the 95% interval of the share inside (Clopper and Pearson), and whether these
        speak against what is wanted.
        """
        if not self.rows:
            return f"bands of {name}: nothing predicted"
        count = len(self.rows)
        inside = sum(low <= truth <= high for low, high, truth in self.rows)
        half = float(np.median([math.log(high / low) / 2 for low, high, _ in self.rows]))
        share = binomtest(inside, count).proportion_ci(0.95)
        verdict = f"as wanted, as far as {count} can show"
        if share.high < WANTED[0]:
            verdict = "too narrow"
        elif share.low > WANTED[1] or (widest is not None and half > widest):
            verdict = "too wide"
        goal = "wanted 85 to 97%" + ("" if widest is None else f", <= {100 * widest:.0f}%")
        return (
            f"bands of {name}: {inside} of {count} truths inside (95% interval {100 * share.low:.0f} to "
            f"{100 * share.high:.0f}%), median half width {100 * half:.1f}% ({goal}): {verdict}"
        )
