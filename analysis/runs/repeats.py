"""The repeats of a run's cells: how many there are, what is missing, and what more of them would cost."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.runs.run_data import RunData, load_repeats
from dpscope.analysis.runs.spreads import step_spread
from dpscope.analysis.stats.detection import RepeatCost
from dpscope.analysis.stats.samples import median_noise
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.folders import RunFolder


def measured_repeats(run: RunData) -> dict[str, int]:
    """Repeats that ended well, by the name of the cell; without cells that were omitted or failed, which have findings."""
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
    """Noise and time per repeat of each cell, from the samples of its finished repeats; reads no trace.

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


def repeats_text(run: RunData) -> str:
    """Such as ``2 repeats of every cell`` or ``1 to 2 repeats of a cell``."""
    counts = measured_repeats(run).values()
    if min(counts) == max(counts):
        return f"{counted(max(counts), 'repeat')} of every cell"
    return f"{min(counts)} to {counted(max(counts), 'repeat')} of a cell"


def repeat_findings(run: RunData) -> Iterator[Finding]:
    """Findings about missing repeats, and about runs of a single repeat."""
    counts, begun = measured_repeats(run), begun_repeats(run)
    planned = {name: run.manifest.repeats_by_cell.get(name, begun) for name in counts}
    fewer = [
        f"{name}: {count} of {counted(planned[name], 'repeat')} measured"
        for name, count in counts.items()
        if count < planned[name]
    ]
    if fewer:
        yield RunCode.REPEATS_MISSING.finding(
            message=f"{'; '.join(fewer)}: these cells rest on fewer steps than the others, or on none"
        )
    if max(counts.values()) == 1:
        yield RunCode.SINGLE_REPEAT.finding(
            message="one repeat of each cell: the spread between repeats is unknown, so no comparison has an interval"
        )
