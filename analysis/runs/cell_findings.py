"""Findings about a measured cell: its samples, its processes, what was compiled, which NCCL engine
ran it.
"""

import shlex
from collections.abc import Iterator, Sequence

import numpy as np

from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Samples, median_slope
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.reading.table import Table
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, Manifest, RankResult
from dpscope.profiling.records.run_codes import RunCode

FEWEST_FOR_DRIFT = 10
DRIFT = 0.05  # of the median, from a repeat's first step to its last
DRIFT_CONFIDENCE = 0.99
OUTLIER_DEVIATIONS = 10.0  # robust standard deviations, as hyperfine has it
OUTLIER_DISTANCE = 0.25  # and of the median
WIDE_SPREAD = 0.1  # of the median, the middle half of the samples
REPEATS_APART = 1.1
SUSPECT = "ProcessGroupNCCL2"
_MOST_LISTED = 8  # ranks
_NEXT_TO_NOTHING = 0.05  # of a step's communication


def spread_findings(name: str, repeats: Sequence[Samples]) -> Iterator[Finding]:
    """Findings about the timed steps of a cell; `repeats` has one array of step times in
    microseconds per repeat.
    """
    repeats = [repeat for repeat in repeats if len(repeat)]
    if not repeats:
        return
    pooled, medians = np.concatenate(repeats), [float(np.median(repeat)) for repeat in repeats]
    lower, middle, upper = np.quantile(pooled, (0.25, 0.5, 0.75))
    enough = len(pooled) >= FEWEST_SAMPLES
    if not enough:
        few = f"{name} has only {counted(len(pooled), 'timed step')} and no interval"
        yield RunCode.FEW_SAMPLES.finding(
            few, f"time at least {counted(FEWEST_SAMPLES, 'step')} (--steps)"
        )
    elif upper - lower > WIDE_SPREAD * middle:
        spread = f"{(upper - lower) / middle:.0%} of their median"
        yield RunCode.WIDE_SPREAD.finding(
            f"{name}: interquartile range of its step times: {spread}"
        )
    if max(medians) > REPEATS_APART * min(medians):
        apart = max(medians) / min(medians) - 1
        yield RunCode.REPEATS_DIFFER.finding(f"{name}: its repeats' medians differ by {apart:.0%}")
    yield from _drift(name, repeats)
    far, worst = [], 1.0  # by the median absolute deviation of their repeat
    for samples, median in zip(repeats, medians, strict=True):
        deviation = 1.4826 * float(np.median(np.abs(samples - median)))
        own = samples[
            samples > median + max(OUTLIER_DEVIATIONS * deviation, OUTLIER_DISTANCE * median)
        ]
        far += own.tolist()
        worst = max([worst, *(own / median).tolist()])
    if far and enough:
        stand = f"{len(far)} of {counted(len(pooled), 'step')} {'stands' if len(far) == 1 else 'stand'} far above the others"
        longest = f"the longest at {show_time(max(far))}, {worst:.1f} times its repeat's median"
        yield RunCode.OUTLIERS.finding(f"{name}: {stand}, {longest}")


def _drift(name: str, repeats: Sequence[Samples]) -> Iterator[Finding]:
    """Steps that grow longer (or shorter) in most repeats, the same way.

    The slope is the median of all pairwise slopes; a trend is significant if its 99% interval
    excludes 0 and the change from the first step to the last reaches DRIFT.
    """
    changes = []
    for samples in repeats:
        if len(samples) >= FEWEST_FOR_DRIFT:
            slope, low, high = median_slope(samples, DRIFT_CONFIDENCE)
            change = slope * (len(samples) - 1) / float(np.median(samples))
            changes += [change] if (low > 0 or high < 0) and abs(change) >= DRIFT else []
    longer = sum(change > 0 for change in changes)
    if 2 * max(longer, len(changes) - longer) <= len(repeats):
        return
    change = float(np.median(changes))
    watch = "watch clocks and temperature: `dpscope doctor`, and pause between runs"
    yield RunCode.DRIFT.finding(
        f"{name}: steps grow {'longer' if change > 0 else 'shorter'} by {abs(change):.0%} of their median from the first of "
        f"a repeat to the last ({len(changes)} of {counted(len(repeats), 'repeat')})",
        "warm up longer (--warmup)" if change < 0 else watch,
    )


def input_findings(cell: Cell, ranks: Sequence[RankResult]) -> Iterator[Finding]:
    """A warning if processes of one job trained on the same samples, by the checksums of their
    first inputs.
    """
    attached = [rank.attached for rank in ranks if rank.attached is not None]
    if cell.traits.one_process or len(attached) < 2:
        return
    checksums = [one.inputs for one in attached if one.inputs is not None]
    distinct = len(set(checksums)) if len(checksums) == len(attached) else len(attached)
    inputs = "the same inputs" if distinct == 1 else f"{distinct} different inputs"
    same = (
        f"{len(attached)} processes trained on {inputs} in the first steps"
        if distinct < len(attached)
        else ""
    )
    if any(one.model_parallel for one in attached):
        text = f"{cell.name}: parameters are sharded without FSDP{same and f'; {same}'}"
        yield AttachCode.MODEL_PARALLEL.finding(text)
    elif same:
        code = (
            AttachCode.MODEL_PARALLEL
            if cell.traits.transport == "unknown"
            else AttachCode.SAME_INPUTS
        )
        yield code.finding(f"{cell.name}: {same}")


_EVEN = 1.1  # largest over smallest batch of the ranks of a script, up to which they count as equal


def batch_finding(data: Job) -> Iterator[Finding]:
    """A warning if the ranks of a script train on different numbers of samples."""
    samples = data.samples_by_rank
    if samples and max(samples.values()) > _EVEN * min(samples.values()):
        listed = ", ".join(
            f"rank {rank}: {count:.0f}" for rank, count in sorted(samples.items())[:_MOST_LISTED]
        )
        more = ", ..." if len(samples) > _MOST_LISTED else ""
        total = f"{data.global_batch_size} samples a step in all"
        yield AttachCode.BATCHES_DIFFER.finding(f"{data.name}: {total} ({listed}{more})")


def more_samples(data: Job, rank: int) -> str | None:
    """That a rank trains on more samples than the others on average, which makes it late; None if
    it does not.
    """
    others = [count for other, count in data.samples_by_rank.items() if other != rank]
    own = data.samples_by_rank.get(rank)
    if own is None or not others or own <= _EVEN * (mean := sum(others) / len(others)):
        return None
    rest = (
        f"the other {len(others)} on {mean:.0f} on average"
        if len(others) > 1
        else f"the other on {mean:.0f}"
    )
    return f"rank {rank} trains on {own:.0f} samples a step, {rest}"


def no_single_device(manifest: Manifest, without: Sequence[str], out: str) -> Iterator[Finding]:
    """A warning if these cells of a script have no single-device cell to be compared with."""
    if manifest.script is not None and without:
        command = f"dpscope attach --devices single --out {shlex.quote(out)} -- {manifest.script}"
        yield AttachCode.NO_SINGLE_DEVICE.finding(
            f"{', '.join(without)}: no single-device cell with the same options, so efficiency and speedup are missing",
            f"run the script on one device without torchrun, into the same folder: {command}",
        )


def compilation_findings(cell: Cell, ranks: Sequence[RankResult]) -> Iterator[Finding]:
    """`not_compiled` and `compiled_late`, each about the rank with the largest number."""
    compiled = [(rank.rank, rank.compilation) for rank in ranks if rank.compilation is not None]
    if not compiled:
        return
    rank, fewest = min(compiled, key=lambda one: one[1].graphs)
    if fewest.graphs == 0:
        broke = f" and broke off at {counted(fewest.breaks, 'place')}" if fewest.breaks else ""
        text = f"{cell.name}: rank {rank} captured no graph{broke}, so the model ran as without --compile."
        yield RunCode.NOT_COMPILED.finding(text)
    rank, latest = max(compiled, key=lambda one: one[1].late_graphs)
    if latest.late_graphs:
        yield RunCode.COMPILED_LATE.finding(
            f"{cell.name}: rank {rank} compiled {latest.late_graphs} of its {counted(latest.graphs, 'graph')} after "
            "warm-up: timed or traced steps hold the time of it."
        )


def engine_findings(
    cell: Cell, ranks: Sequence[RankResult], windows: Table, collectives: Table
) -> Iterator[Finding]:
    """`engine_hides_nothing` where the engine ran an overlapping DDP cell of several buckets and
    nothing was hidden.

    In torch 2.15's library its `getFuture()` makes the current stream wait, which would put DDP's
    all-reduces one after another with its backward pass. Read from the library, not confirmed on
    hardware. `windows` are whole traced steps. With one bucket, which is complete when backward is
    over, nothing could be hidden.
    """
    if (
        not cell.traits.reducer
        or cell.options.overlap == "off"
        or SUSPECT not in {rank.nccl_engine for rank in ranks}
    ):
        return
    communication_us, hidden_us = windows.mean("communication_us"), windows.mean("hidden_us")
    if (
        not communication_us
        or hidden_us is None
        or hidden_us >= _NEXT_TO_NOTHING * communication_us
    ):
        return
    reduced = collectives.having("kind", "all_reduce")
    buckets = reduced.take(reduced.known("step")).group("repeat", "rank", "step").sizes
    if len(buckets) and int(np.median(buckets)) > 1:
        yield RunCode.ENGINE_HIDES_NOTHING.finding(
            f"{cell.name}: {hidden_us / communication_us:.0%} of its communication ({show_time(communication_us)} a step) is "
            f"hidden behind compute, and {SUSPECT} ran it: that engine may make DDP wait for every bucket (not confirmed on "
            "hardware)."
        )
