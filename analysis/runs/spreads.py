"""How far the repeats of a run's cells lie apart, and each cell's ledger with intervals from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dpscope.analysis.stats import samples as stats
from dpscope.analysis.traces.ranks.job import PARTS, Job
from dpscope.analysis.traces.ranks.ledger import Ledger


@dataclass(frozen=True)
class RunSpreads:
    """`step`: of logarithms of untraced medians. `parts`: of PARTS, as shares of the cell's
    untraced step.
    """

    step: stats.Spread = stats.ALONE
    parts: Mapping[str, stats.Spread] = field(
        default_factory=lambda: dict.fromkeys(PARTS, stats.ALONE)
    )

    def ledger(self, data: Job) -> Ledger | None:
        """Means over ranks and whole traced windows, with 95% intervals over repeats; None without
        a traced step.

        `slowdown_us` is left out: it needs the cell of one device. Intervals come from the values
        of each repeat as shares of the untraced step, however many steps each traced. They end at
        0, but for the tracer's. A part that is 0 in every window has none: other cells' spread is
        not its own.
        """
        if (ledger := data.traced_ledger) is None:
            return None
        if data.devices == 1 or not data.communication_known:
            ledger = replace(
                ledger,
                exposed_wait_us=None,
                exposed_transfer_us=None,
                exposed_other_us=None,
                communication_us=None,
            )
        if not data.communication_known:
            ledger = replace(ledger, idle_us=None)  # it would hold what the trace does not show
        step_us = stats.pooled_median(data.step_samples())
        if step_us is not None and ledger.traced_step_us is not None:
            ledger = replace(ledger, tracer_us=step_us - ledger.traced_step_us)
        if step_us is None:
            return ledger
        return replace(ledger, intervals=self._intervals(data, ledger, step_us))

    def _intervals(self, data: Job, ledger: Ledger, step_us: float) -> dict[str, stats.Interval]:
        """That of each part; one wider than the step itself is left out: it says nothing."""
        intervals = {}
        for part in PARTS:
            share = stats.half_width(data.parts_by_repeat[part] / step_us, self.parts[part])
            value = getattr(ledger, f"{part}_us")
            if (
                share is not None
                and share < 1
                and value is not None
                and (value or part == "tracer")
            ):
                least = -math.inf if part == "tracer" else 0.0
                intervals[part] = stats.Interval(
                    max(least, value - share * step_us), value + share * step_us
                )
        return intervals


def step_spread(cells: Sequence[Job]) -> stats.Spread:
    """The spread of the untraced steps of a run's cells, which are measured in turns."""
    return stats.spread_in_turns(data.step_samples() for data in cells)


def run_spreads(cells: Sequence[Job]) -> RunSpreads:
    """The pooled spreads of measured cells.

    Cells share a machine, so their compute and idle time vary alike; exposed communication varies
    with the strategy and keeps each cell's own spread. What is 0 in every window, by the strategy,
    is no sample of a spread.
    """
    timed = [
        (data, float(np.median(np.concatenate(steps))))
        for data in cells
        if (steps := data.step_samples())
    ]
    parts = dict.fromkeys(PARTS, stats.ALONE)
    for part in (part for part in PARTS if "exposed" not in part):
        shares = (data.parts_by_repeat[part] / step_us for data, step_us in timed)
        parts[part] = sum((stats.spread_of(share) for share in shares if share.any()), stats.ALONE)
    return RunSpreads(step_spread(cells), parts)
