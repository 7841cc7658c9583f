"""How far the repeats of a run's cells lie apart, pooled over the cells, and each cell's ledger with intervals from it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dpscope.analysis.runs.cell_data import PARTS, CellData
from dpscope.analysis.stats.samples import (
    ALONE,
    FEWEST_SAMPLES,
    Interval,
    Spread,
    half_width,
    pooled_median,
    spread_in_turns,
    spread_of,
)
from dpscope.analysis.traces.ranks.ledger import Ledger, ledger_of
from dpscope.analysis.traces.reading.table import as_table


@dataclass(frozen=True)
class RunSpreads:
    """`step`: of logarithms of untraced medians. `parts`: of PARTS, as shares of the cell's untraced step."""

    step: Spread = ALONE
    parts: Mapping[str, Spread] = field(default_factory=lambda: dict.fromkeys(PARTS, ALONE))
    _ledgers: dict[int, tuple[CellData, Ledger | None]] = field(default_factory=dict, repr=False, compare=False)

    def ledger(self, data: CellData) -> Ledger | None:
        """Means over ranks and whole traced windows, with 95% intervals over repeats; None without a traced step.

        `slowdown_us` is left out: it needs the cell of one device. Computed once per cell.
        """
        if id(data) not in self._ledgers:
            self._ledgers[id(data)] = data, _ledger(data, self)
        return self._ledgers[id(data)][1]


def step_spread(cells: Sequence[CellData]) -> Spread:
    """The spread of the untraced steps of a run's cells, which are measured in turns."""
    return spread_in_turns(data.step_samples() for data in cells)


def run_spreads(cells: Sequence[CellData]) -> RunSpreads:
    """The pooled spreads of measured cells. One device exposes 0 by definition, which is no sample of a spread."""
    shares = [
        (data.cell.devices, data.parts_by_repeat / float(np.median(np.concatenate(data.step_samples()))))
        for data in cells
        if len(data.samples)
    ]
    parts = {
        part: [own[part].dropna().to_numpy() for devices, own in shares if devices > 1 or "exposed" not in part]
        for part in PARTS
    }
    return RunSpreads(step_spread(cells), {part: sum(map(spread_of, values), ALONE) for part, values in parts.items()})


def _ledger(data: CellData, spreads: RunSpreads) -> Ledger | None:
    """Its intervals come from the values of each repeat as shares of the untraced step; none with too few steps."""
    windows = data.whole_windows
    ledger = ledger_of(as_table(windows), as_table(data.exposed_parts)) if len(windows) else None
    if ledger is None:
        return None
    if data.cell.devices == 1 or not data.communication_known:
        ledger = replace(
            ledger, exposed_wait_us=None, exposed_transfer_us=None, exposed_other_us=None, communication_us=None
        )
    if not data.communication_known:
        ledger = replace(ledger, idle_us=None)  # it would hold what the trace does not show
    step_us = pooled_median(data.step_samples())
    if step_us is not None and ledger.traced_step_us is not None:
        ledger = replace(ledger, tracer_us=step_us - ledger.traced_step_us)
    traced = len(data.critical_windows.drop_duplicates(["repeat", "step"]))
    if step_us is None or min(sum(map(len, data.step_samples())), traced) < FEWEST_SAMPLES:
        return ledger
    intervals = {}
    for part in PARTS:
        share = half_width((data.parts_by_repeat[part].dropna() / step_us).to_numpy(), spreads.parts[part])
        value = getattr(ledger, f"{part}_us")
        if share is not None and value is not None:
            intervals[part] = Interval(value - share * step_us, value + share * step_us)
    return replace(ledger, intervals=intervals)
