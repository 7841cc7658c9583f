"""What limits all that a run's verdict states: repeats that differ, drift, cores that are shared."""

from collections.abc import Iterator, Sequence

import numpy as np

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.findings.facts import Fact, Scale, percent
from dpscope.analysis.findings.ledger_text import tracing_findings
from dpscope.analysis.findings.predictions import noisy_calibration
from dpscope.analysis.runs.run_data import RunData, missing_repeats
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import Finding, grouped, listed
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.records.strategies import traits_of

# largest over smallest median of a cell's repeats, above which a warning precedes all facts
REPEATS_APART = 1.3
_NAMED = 3  # cells in a line
NOISY = "NOISY"
MISSING = "MISSING"
_CALIBRATED = "each calibrated size predicted by a fit of the others; 90% of the errors are smaller"


def on_shared_cores(run: RunData) -> list[Job]:
    """The measured cells whose processes have no core each."""
    return [data for data in run.measured if data.no_scaling and not data.trained_alone]


def limits(run: RunData, comparison: Comparison, case: Sequence[CellRow]) -> Iterator[Fact]:
    """What limits all facts that follow."""
    yield from _left_out(run)
    missing = list(_missing(run))
    if missing:
        yield _limit(MISSING, *missing, basis="repeats that ended well, of those planned")
    noisy = _noisy(run, comparison, case)
    if noisy:
        cells = listed(noisy, _NAMED)
        apart = percent(REPEATS_APART - 1)
        differ = f"medians of repeats differ by over {apart}: {cells}"
        yield _limit(NOISY, differ, basis="median untraced step of each repeat")
    drifts = list(_drifts(run, comparison, case))
    if drifts:
        yield _limit("DRIFT", *drifts, basis="least squares; medians of the timed steps")
    noise = noisy_calibration(comparison)
    if noise is not None:
        yield _limit("NOISY FIT", noise.message, basis=_CALIBRATED)
    yield from _too_few_cores(run)
    batches = ", ".join(comparison.batches_seen)
    if batches:
        source = "inferred from the model's calls (or set --batch-size)"
        line = f"{batches} per device, {source}"
        yield _limit("BATCH", line)


def _limit(label: str, *lines: str, basis: str = "not measured") -> Fact:
    return Fact("limits", label, lines, basis)


def _left_out(run: RunData) -> Iterator[Fact]:
    """The repeats whose traces are not whole."""
    basis = "each rank's trace, read to its end"
    incomplete = [data for data in run.measured if data.left_out]
    for data in incomplete:
        label = data.left_out[0].label
        line = f"{data.name}: {data.left_out_text}"
        yield _limit(label, line, basis=basis)


def _missing(run: RunData) -> Iterator[str]:
    """The repeats of planned cells that are missing."""
    missing = missing_repeats(run)
    planned = len(run.manifest.plan)
    alike = grouped((repeats, name) for name, repeats in missing.items())
    for repeats, names in alike.items():
        cells = listed(names, _NAMED)
        if len(names) == planned:
            cells = "every cell"
        yield f"{cells}: {repeats}"


def _too_few_cores(run: RunData) -> Iterator[Fact]:
    """That cells' processes shared cores, and what to use instead; cells with one reason are named
    once.
    """
    shared = on_shared_cores(run)
    crowded = [(data.no_scaling, data.cores) for data in shared]
    cores_by_reason = grouped(crowded)
    for why, (cores, *_) in cores_by_reason.items():
        remedy = "use more cores"
        if cores is not None and cores > 1:
            remedy = f"use --devices up to {cores}"
        yield _limit("TOO FEW CORES", f"{why}, so these cells say nothing: {remedy}")


def _drifts(run: RunData, comparison: Comparison, case: Sequence[CellRow]) -> Iterator[str]:
    """What the findings state of a round of all measured cells, and of the case's cells."""
    for finding in round_drift(run):
        yield finding.message
    for row, data in _with_baselines(run, comparison, case):
        findings = [*data.findings, *tracing_findings(row)]
        drifts = (finding for finding in findings if finding.code == RunCode.DRIFT.code)
        for drift in drifts:
            yield drift.message


def round_drift(run: RunData) -> Iterator[Finding]:
    """That steps changed within a round of all measured cells."""
    drift = run.spreads.step.drift
    if drift is None:
        return
    # the slope is the logarithm of the ratio between neighbours of a round
    cells_after_first = len(run.measured) - 1
    change = drift.slope * cells_after_first
    share = percent(abs(np.expm1(change)))
    direction = "longer" if change > 0 else "shorter"
    yield RunCode.DRIFT.finding(
        f"steps became {share} {direction} within a round of all measured cells: "
        "ratios and efficiency leave that out, times do not",
        "watch clocks and temperature: `dpscope doctor`, and pause between runs",
    )


def _with_baselines(
    run: RunData, comparison: Comparison, case: Sequence[CellRow]
) -> Iterator[tuple[CellRow, Job]]:
    """The case's cells after the single devices that they are compared with."""
    batches = {row.batch_size for row in case}
    timed = timed_rows(comparison)
    singles = [row for row in timed if traits_of(row.strategy).baseline]
    baselines = [row for row in singles if row.batch_size in batches]
    for row in (*baselines, *case):
        yield row, run.cells[row.cell]


def _noisy(run: RunData, comparison: Comparison, case: Sequence[CellRow]) -> list[str]:
    """The medians of the repeats of the case's cells and their baselines, for cells whose medians
    differ too much.
    """
    noisy = []
    for row, data in _with_baselines(run, comparison, case):
        timed = [steps for steps in data.step_samples() if len(steps)]
        medians = [float(np.median(steps)) for steps in timed]
        if not medians:
            continue
        shortest = min(medians)
        longest = max(medians)
        if longest > REPEATS_APART * shortest:
            scale = Scale(medians)
            low = scale.number(shortest)
            high = scale.time(longest)
            noisy.append(f"{row.cell} {low} to {high}")
    return noisy


def timed_rows(comparison: Comparison) -> list[CellRow]:
    """The measured cells."""
    every = comparison.rows.values()
    return [row for row in every if row.step_us is not None]
