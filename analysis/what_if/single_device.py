"""One device's step by batch, which every step on several is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.stats.arrays import Floats
from dpscope.analysis.what_if.step_table import MeasuredStep

BATCH_REACH = 2.0  # times the measured batches that t_1 is carried on


@dataclass(frozen=True)
class SingleDevice:
    """t_1 by batch per device, ascending; rows at one batch are joined to their median."""

    batches: Floats
    step_us: Floats

    def at(self, batch_size: int) -> float | None:
        """Between measured batches linearly, up to twice beyond them by the nearest two; None where it is not known."""
        least, most = self.batches[0], self.batches[-1]
        if len(self.batches) == 1:
            return float(self.step_us[0]) if batch_size == least else None
        if least <= batch_size <= most:
            return float(np.interp(batch_size, self.batches, self.step_us))
        if not least / BATCH_REACH <= batch_size <= most * BATCH_REACH:
            return None
        pair = slice(0, 2) if batch_size < least else slice(-2, None)
        slope, start = np.polyfit(self.batches[pair], self.step_us[pair], 1)
        value = float(start + slope * batch_size)
        return value if value > 0 else None


def single_device(rows: Sequence[MeasuredStep]) -> SingleDevice | None:
    """Rows of one device; of DistributedDataParallel on one device where there are no others."""
    alone: dict[int, list[float]] = {}
    chosen = [row for row in rows if row.single] or [row for row in rows if row.placement.ranks == 1]
    for row in chosen:
        alone.setdefault(row.batch_size, []).append(row.step_us)
    if not alone:
        return None
    batches = sorted(alone)
    return SingleDevice(np.array(batches, dtype=float), np.array([np.median(alone[batch]) for batch in batches]))
