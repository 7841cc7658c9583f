"""Findings about a measured cell: its samples, its processes, what was compiled, which NCCL engine ran it."""

import shlex
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Samples, median_slope
from dpscope.analysis.text.units import show_time
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, Compilation, Manifest, RankResult
from dpscope.profiling.records.run_codes import RunCode

FEWEST_FOR_DRIFT = 10
DRIFT = 0.05  # of the median, from a repeat's first step to its last
DRIFT_CONFIDENCE = 0.99
OUTLIER_DEVIATIONS = 10.0  # robust standard deviations, as hyperfine has it
OUTLIER_DISTANCE = 0.25  # and of the median
WIDE_SPREAD = 0.1  # of the median, the middle half of the samples
REPEATS_APART = 1.1
SUSPECT = "ProcessGroupNCCL2"
_NEXT_TO_NOTHING = 0.05  # of a step's communication


def spread_findings(name: str, repeats: Sequence[Samples]) -> list[Finding]:
    """Findings about the timed steps of a cell; `repeats` has one array of step times in microseconds per repeat."""
    kept = [repeat for repeat in repeats if len(repeat)]
    if not kept:
        return []
    findings = [_few(name, kept), _wide(name, kept), _apart(name, kept), _drift(name, kept), _outliers(name, kept)]
    return [finding for finding in findings if finding is not None]


def _few(name: str, repeats: Sequence[Samples]) -> Finding | None:
    count = sum(map(len, repeats))
    if count >= FEWEST_SAMPLES:
        return None
    return RunCode.FEW_SAMPLES.finding(
        f"{name} has only {counted(count, 'timed step')} and no interval",
        f"time at least {counted(FEWEST_SAMPLES, 'step')} (--steps)",
    )


def _wide(name: str, repeats: Sequence[Samples]) -> Finding | None:
    pooled = np.concatenate(repeats)
    lower, middle, upper = np.quantile(pooled, (0.25, 0.5, 0.75))
    if len(pooled) < FEWEST_SAMPLES or upper - lower <= WIDE_SPREAD * middle:
        return None
    return RunCode.WIDE_SPREAD.finding(
        f"{name}: interquartile range of its step times: {(upper - lower) / middle:.0%} of their median"
    )


def _apart(name: str, repeats: Sequence[Samples]) -> Finding | None:
    medians = [float(np.median(repeat)) for repeat in repeats]
    if max(medians) <= REPEATS_APART * min(medians):
        return None
    return RunCode.REPEATS_DIFFER.finding(
        f"{name}: its repeats' medians differ by {max(medians) / min(medians) - 1:.0%}"
    )


def relative_drift(samples: Samples) -> float | None:
    """Change from the first step to the last over the median; None if no trend is significant.

    The slope is the median of all pairwise slopes; a trend is significant if its 99% interval excludes 0 and it reaches DRIFT.
    """
    if len(samples) < FEWEST_FOR_DRIFT:
        return None
    slope, low, high = median_slope(samples, DRIFT_CONFIDENCE)
    change = slope * (len(samples) - 1) / float(np.median(samples))
    return change if (low > 0 or high < 0) and abs(change) >= DRIFT else None


def _drift(name: str, repeats: Sequence[Samples]) -> Finding | None:
    """Steps that grow longer (or shorter) in most repeats, the same way."""
    changes = [change for repeat in repeats if (change := relative_drift(repeat)) is not None]
    longer = sum(change > 0 for change in changes)
    if 2 * max(longer, len(changes) - longer) <= len(repeats):
        return None
    change = float(np.median(changes))
    return RunCode.DRIFT.finding(
        f"{name}: steps grow {'longer' if change > 0 else 'shorter'} by {abs(change):.0%} of their median from the first of "
        f"a repeat to the last ({len(changes)} of {counted(len(repeats), 'repeat')})",
        "warm up longer (--warmup)"
        if change < 0
        else "watch clocks and temperature: `dpscope doctor`, and pause between runs",
    )


def _outliers(name: str, repeats: Sequence[Samples]) -> Finding | None:
    """Steps far above the rest of their repeat, by the median absolute deviation."""
    far: list[float] = []
    worst = 1.0
    for samples in repeats:
        middle = float(np.median(samples))
        deviation = 1.4826 * float(np.median(np.abs(samples - middle)))
        distance = max(OUTLIER_DEVIATIONS * deviation, OUTLIER_DISTANCE * middle)
        own = samples[samples > middle + distance]
        far += own.tolist()
        worst = max([worst, *(own / middle).tolist()])
    count = sum(map(len, repeats))
    if not far or count < FEWEST_SAMPLES:
        return None
    return RunCode.OUTLIERS.finding(
        f"{name}: {len(far)} of {counted(count, 'step')} {'stands' if len(far) == 1 else 'stand'} far above the others, "
        f"the longest at {show_time(max(far))}, {worst:.1f} times its repeat's median"
    )


def trained_alone(cell: Cell, steps: pd.DataFrame) -> Finding:
    """An error: no process of the cell communicated in the traced steps."""
    return AttachCode.TRAINED_ALONE.finding(
        f"{cell.name}: each process trained alone: no collective in {counted(steps['step'].nunique(), 'traced step')} of "
        f"{counted(cell.devices, 'process')}, and no DDP or FSDP around the model"
    )


def input_findings(cell: Cell, ranks: Sequence[RankResult]) -> list[Finding]:
    """A warning if processes of one job trained on the same samples, by the checksums of their first inputs."""
    attached = [rank.attached for rank in ranks if rank.attached is not None]
    if cell.traits.one_process or len(attached) < 2:
        return []
    checksums = [one.inputs for one in attached if one.inputs is not None]
    distinct = len(set(checksums)) if len(checksums) == len(attached) else len(attached)
    if any(one.model_parallel for one in attached):
        return [
            AttachCode.MODEL_PARALLEL.finding(
                f"{cell.name}: parameters are sharded without FSDP{_same(distinct, attached)}"
            )
        ]
    if distinct == len(attached):
        return []
    code = AttachCode.MODEL_PARALLEL if cell.traits.transport == "unknown" else AttachCode.SAME_INPUTS
    return [code.finding(f"{cell.name}: {_inputs(distinct, len(attached))}")]


def _same(distinct: int, attached: Sequence[object]) -> str:
    return f"; {_inputs(distinct, len(attached))}" if distinct < len(attached) else ""


def _inputs(distinct: int, processes: int) -> str:
    inputs = "the same inputs" if distinct == 1 else f"{distinct} different inputs"
    return f"{processes} processes trained on {inputs} in the first steps"


def no_single_device(manifest: Manifest, without: Sequence[str], out: str) -> list[Finding]:
    """A warning if these cells of a script have no single-device cell to be compared with."""
    if manifest.script is None or not without:
        return []
    command = f"dpscope attach --devices single --out {shlex.quote(out)} -- {manifest.script}"
    return [
        AttachCode.NO_SINGLE_DEVICE.finding(
            f"{', '.join(without)}: no single-device cell with the same options, so efficiency and speedup are missing",
            f"run the script on one device without torchrun, into the same folder: {command}",
        )
    ]


def compilation_findings(cell: Cell, ranks: Sequence[RankResult]) -> list[Finding]:
    """`not_compiled` and `compiled_late`, each about the rank with the largest number."""
    compiled = [(rank.rank, rank.compilation) for rank in ranks if rank.compilation is not None]
    if not compiled:
        return []
    findings = []
    rank, fewest = min(compiled, key=lambda one: one[1].graphs)
    if fewest.graphs == 0:
        findings.append(
            RunCode.NOT_COMPILED.finding(
                f"{cell.name}: rank {rank} captured no graph{_breaks(fewest)}, so the model ran as without --compile."
            )
        )
    rank, latest = max(compiled, key=lambda one: one[1].late_graphs)
    if latest.late_graphs:
        findings.append(
            RunCode.COMPILED_LATE.finding(
                f"{cell.name}: rank {rank} compiled {latest.late_graphs} of its {counted(latest.graphs, 'graph')} after "
                "warm-up: timed or traced steps hold the time of it."
            )
        )
    return findings


def _breaks(compilation: Compilation) -> str:
    return f" and broke off at {counted(compilation.breaks, 'place')}" if compilation.breaks else ""


def engine_findings(
    cell: Cell, ranks: Sequence[RankResult], windows: pd.DataFrame, collectives: pd.DataFrame
) -> list[Finding]:
    """`engine_hides_nothing` where the engine ran an overlapping DDP cell of several buckets and nothing was hidden.

    In torch 2.15's library its `getFuture()` makes the current stream wait, which would put DDP's all-reduces one after another
    with its backward pass. Read from the library, not confirmed on hardware. `windows` are whole traced steps.
    """
    if not cell.traits.reducer or cell.options.overlap == "off" or SUSPECT not in {rank.nccl_engine for rank in ranks}:
        return []
    if windows.empty or collectives.empty or _buckets(collectives) < 2:
        return []  # the only bucket is complete when backward is over: nothing could be hidden
    communication_us, hidden_us = (float(windows[name].mean()) for name in ("communication_us", "hidden_us"))
    if not communication_us > 0 or not hidden_us < _NEXT_TO_NOTHING * communication_us:
        return []
    return [
        RunCode.ENGINE_HIDES_NOTHING.finding(
            f"{cell.name}: {hidden_us / communication_us:.0%} of its communication ({show_time(communication_us)} a step) is "
            f"hidden behind compute, and {SUSPECT} ran it: that engine may make DDP wait for every bucket (not confirmed on "
            "hardware)."
        )
    ]


def _buckets(collectives: pd.DataFrame) -> int:
    """All-reduces of a rank in a step, of most steps."""
    reduced = collectives[(collectives["kind"] == "all_reduce") & collectives["step"].notna()]
    counts = reduced.groupby(["repeat", "rank", "step"]).size()
    return int(counts.median()) if len(counts) else 0
