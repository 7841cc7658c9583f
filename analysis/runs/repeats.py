"""How far the repeats of a run's cells lie apart, pooled over the cells: their steps, and the parts of their steps."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from dpscope.analysis.runs.loaded_repeat import load_repeats
from dpscope.analysis.runs.run_data import CellData, RunData
from dpscope.analysis.stats.detection import RepeatCost
from dpscope.analysis.stats.samples import ALONE, Spread, median_noise, pooled_spread, spread_of
from dpscope.analysis.traces.ranks.ledger import STEP_PARTS
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.folders import RunFolder

PARTS = (*STEP_PARTS, "exposed", "traced_step", "tracer")
"""Of a cell's step: those that add up to the traced step, all exposed communication, the traced step, the rest of the step."""


@dataclass(frozen=True)
class RunSpreads:
    """`step`: of logarithms of untraced medians. `parts`: of PARTS, as shares of the cell's own untraced step."""

    step: Spread = ALONE
    parts: Mapping[str, Spread] = field(default_factory=lambda: dict.fromkeys(PARTS, ALONE))


def step_spread(cells: Sequence[CellData]) -> Spread:
    """The pooled spread of cells' untraced steps."""
    return pooled_spread(data.step_samples() for data in cells)


def run_spreads(cells: Sequence[CellData]) -> RunSpreads:
    """The pooled spreads of measured cells. What one device exposes is 0 by definition and adds to no spread."""
    timed = [data for data in cells if len(data.samples)]
    shares = [(data.cell.devices, parts_by_repeat(data) / _step_us(data)) for data in timed]
    return RunSpreads(
        step=step_spread(cells),
        parts={
            part: sum(
                (
                    spread_of(own[part].dropna().to_numpy())
                    for devices, own in shares
                    if devices > 1 or "exposed" not in part
                ),
                ALONE,
            )
            for part in PARTS
        },
    )


def _step_us(data: CellData) -> float:
    return float(np.median(np.concatenate(data.step_samples())))


def parts_by_repeat(data: CellData) -> pd.DataFrame:
    """A row per repeat with traced and timed steps, a column for each of PARTS, microseconds; NaN is unknown.

    Means over ranks and whole traced steps, as `Ledger`; `tracer` is the repeat's untraced median minus its mean traced step.
    """
    windows = data.critical_windows()
    if windows.empty or data.samples.empty:
        return pd.DataFrame(columns=list(PARTS), dtype=float)
    numbers = sorted(set(data.samples.loc[data.samples["measuring_pass"] == "timed", "repeat"]))
    untraced = {number: float(np.median(steps)) for number, steps in zip(numbers, data.step_samples(), strict=True)}
    columns = {f"{part}_us": part for part in (*STEP_PARTS, "exposed")} | {"step_us": "traced_step"}
    means = windows.groupby("repeat")[list(columns)].mean().astype("Float64").astype(float).rename(columns=columns)
    means = means[means.index.isin(list(untraced))]
    return means.assign(tracer=means.index.map(untraced).astype(float) - means["traced_step"])[list(PARTS)]


def measured_repeats(run: RunData) -> dict[str, int]:
    """Repeats that ended well, by the name of the cell; without cells that are left out or failed, which findings tell."""
    return {
        name: len({repeat for repeat, _ in data.ranks})
        for name, data in run.cells.items()
        if data.measured or not (data.skip_reason or data.results)
    }


def begun_repeats(run: RunData) -> int:
    """The most repeats that any cell has, finished or not.

    Not the plan's number: cells measured by hand follow none.
    """
    folders = ((run.path / "cells" / name).glob("repeat*") for name in run.cells)
    begun = (sum(path.name.removeprefix("repeat").isdigit() for path in own) for own in folders)
    return max(*begun, *measured_repeats(run).values())


def repeat_costs(folder: RunFolder) -> dict[str, RepeatCost]:
    """What the finished repeats of each cell tell of its noise and of the time of one more; from samples, no trace is read.

    Cells without an interval are left out.
    """
    cells = []
    for planned in folder.manifest().plan:
        done = [repeat for repeat in load_repeats(folder, planned.cell) if not repeat.samples.empty]
        results = tuple(repeat.result for repeat in done)
        samples = [repeat.samples.assign(repeat=repeat.index) for repeat in done]
        if samples:
            cells.append(CellData(planned.cell, None, results, samples=pd.concat(samples, ignore_index=True)))
    pool = step_spread(cells)
    noises = [(data, median_noise(data.step_samples(), pool)) for data in cells]
    return {
        data.cell.name: RepeatCost(noise, float(np.mean([result.duration_s for result in data.results])))
        for data, noise in noises
        if noise is not None
    }


def repeats_said(run: RunData) -> str:
    """Such as ``2 repeats of every cell`` or ``1 to 2 repeats of a cell``."""
    counts = measured_repeats(run).values()
    if min(counts) == max(counts):
        return f"{counted(max(counts), 'repeat')} of every cell"
    return f"{min(counts)} to {counted(max(counts), 'repeat')} of a cell"


def repeat_findings(run: RunData) -> Iterator[Finding]:
    """Repeats that are missing, and what one repeat alone cannot tell."""
    counts, begun = measured_repeats(run), begun_repeats(run)
    asked = {name: run.manifest.repeats_by_cell.get(name, begun) for name in counts}
    fewer = [
        f"{name}: {count} of {counted(asked[name], 'repeat')} measured"
        for name, count in counts.items()
        if count < asked[name]
    ]
    if fewer:
        yield RunCode.REPEATS_MISSING.finding(
            message=f"{'; '.join(fewer)}: these cells rest on fewer steps than the others, or on none"
        )
    if max(counts.values()) == 1:
        yield RunCode.SINGLE_REPEAT.finding(
            message="one repeat of each cell: the spread between repeats is unknown, so no comparison has an interval"
        )
