"""Findings about a measured cell: its samples, its processes, what was compiled."""

from collections.abc import Iterator, Sequence

import numpy as np

from dpscope.analysis.stats.samples import FEWEST_SAMPLES, Samples, median_slope
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.attach_codes import AttachCode
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.run import Cell, RankResult
from dpscope.profiling.records.run_codes import RunCode

FEWEST_FOR_DRIFT = 10
DRIFT = 0.05  # of the median, from a repeat's first step to its last
DRIFT_CONFIDENCE = 0.99
OUTLIER_DEVIATIONS = 10.0  # robust standard deviations, as hyperfine has it
OUTLIER_DISTANCE = 0.25  # and of the median
WIDE_SPREAD = 0.1  # of the median, the middle half of the samples
REPEATS_APART = 0.1  # of the smallest median, the largest
SUSPECT = "ProcessGroupNCCL2"


def spread_findings(name: str, repeats: Sequence[Samples]) -> Iterator[Finding]:
    """Findings about the timed steps of a cell; `repeats` has one array of step times in
    microseconds per repeat.
    """
    repeats = [repeat for repeat in repeats if len(repeat)]
    if not repeats:
        return
    pooled = np.concatenate(repeats)
    lower, middle, upper = np.quantile(pooled, (0.25, 0.5, 0.75))
    spread = (upper - lower) / middle
    enough = len(pooled) >= FEWEST_SAMPLES
    if not enough:
        few = f"only {counted(len(pooled), 'timed step')}, so no interval"
        action = f"time at least {counted(FEWEST_SAMPLES, 'step')} (--steps)"
        yield RunCode.FEW_SAMPLES.finding(few, action, about=name)
    apart = repeats_apart(repeats)
    unsteady = ""  # of several signs of a machine that was not quiet the worst
    if apart > REPEATS_APART:
        unsteady = f"repeats {apart:.0%} apart"
    elif enough and spread > WIDE_SPREAD:
        unsteady = f"the middle half of its steps spans {spread:.0%} of the median"
    elif enough:
        unsteady = _outliers(repeats)
    if unsteady:
        yield RunCode.WIDE_SPREAD.finding(unsteady, about=name)
    yield from _drift(name, repeats)


def repeats_apart(repeats: Sequence[Samples]) -> float:
    """By how much the largest median of a cell's repeats exceeds the smallest, as a share of it."""
    medians = [float(np.median(repeat)) for repeat in repeats if len(repeat)]
    return max(medians) / min(medians) - 1 if medians else 0.0


def _outliers(repeats: Sequence[Samples]) -> str:
    """Steps far above the others of their repeat, by its median absolute deviation."""
    far: list[float] = []
    worst = 1.0
    for samples in repeats:
        median = float(np.median(samples))
        deviation = 1.4826 * float(np.median(np.abs(samples - median)))
        least_apart = max(OUTLIER_DEVIATIONS * deviation, OUTLIER_DISTANCE * median)
        above = samples[samples > median + least_apart]
        far += above.tolist()
        worst = max([worst, *(above / median).tolist()])
    if not far:
        return ""
    every = sum(map(len, repeats))
    steps = counted(every, "step")
    longest = f"the longest {show_time(max(far))}, {worst:.1f}x its repeat's median"
    return f"far above the others: {len(far)} of {steps} ({longest})"


def _drift(name: str, repeats: Sequence[Samples]) -> Iterator[Finding]:
    """Steps that grow longer (or shorter) in most repeats, the same way.

    The slope is the median of all pairwise slopes; a trend is significant if its 99% interval
    excludes 0 and the change from the first step to the last reaches DRIFT.
    """
    changes = []
    for samples in repeats:
        if len(samples) < FEWEST_FOR_DRIFT:
            continue
        slope, low, high = median_slope(samples, DRIFT_CONFIDENCE)
        change = slope * (len(samples) - 1) / float(np.median(samples))
        significant = low > 0 or high < 0
        if significant and abs(change) >= DRIFT:
            changes.append(change)
    longer = sum(change > 0 for change in changes)
    if 2 * max(longer, len(changes) - longer) <= len(repeats):
        return
    change = float(np.median(changes))
    direction = "longer" if change > 0 else "shorter"
    action = "warm up longer (--warmup)"
    if change > 0:
        action = "watch clocks and temperature: `dpscope doctor`, and pause between runs"
    yield RunCode.DRIFT.finding(
        f"steps grow {direction} by {abs(change):.0%} from the first of a repeat to the last "
        f"({len(changes)} of {counted(len(repeats), 'repeat')})",
        action,
        about=name,
    )


def input_findings(cell: Cell, ranks: Sequence[RankResult]) -> Iterator[Finding]:
    """A warning if processes of one job trained on the same samples, by the checksums of their
    first inputs.
    """
    attached = [rank.attached for rank in ranks if rank.attached is not None]
    if cell.traits.one_process or len(attached) < 2:
        return
    checksums = [script.inputs for script in attached]
    distinct = len(set(checksums))
    trained_on_same = None not in checksums and distinct < len(attached)
    same = f"in the first steps, {len(attached)} processes trained on only {counted(distinct, 'distinct input')}"
    parts_of_one = any(script.model_parallel for script in attached)
    if parts_of_one or (trained_on_same and cell.traits.transport == "unknown"):
        yield AttachCode.SAME_INPUTS.finding(
            same if trained_on_same else "parameters are sharded without FSDP",
            "if the processes hold parts of one model, set --batch-size to the samples of a step "
            "divided by the number of processes",
            about=cell.name,
        )
    elif trained_on_same:
        yield AttachCode.SAME_INPUTS.finding(same, about=cell.name)


_EVEN = 1.1  # largest over smallest batch of the ranks of a script, up to which they count as equal


def batch_finding(data: Job) -> Iterator[Finding]:
    """A warning if the ranks of a script train on different numbers of samples."""
    samples = data.samples_by_rank
    if not samples or max(samples.values()) <= _EVEN * min(samples.values()):
        return
    each = listed([f"rank {rank}: {count:.0f}" for rank, count in sorted(samples.items())])
    text = f"{data.global_batch_size} samples a step in all ({each})"
    yield AttachCode.BATCHES_DIFFER.finding(text, about=data.name)


def more_samples(data: Job, rank: int) -> str | None:
    """That a rank trains on more samples than the others on average, which makes it late; None if
    it does not.
    """
    own = data.samples_by_rank.get(rank)
    others = [count for other, count in data.samples_by_rank.items() if other != rank]
    if own is None or not others:
        return None
    mean = sum(others) / len(others)
    if own <= _EVEN * mean:
        return None
    return f"rank {rank} trains on {own:.0f} samples a step, the others on {mean:.0f} (mean)"


def compilation_findings(cell: Cell, ranks: Sequence[RankResult]) -> Iterator[Finding]:
    """`not_compiled` and `compiled_late`, each about the rank with the largest number."""
    compiled = [(rank.rank, rank.compilation) for rank in ranks if rank.compilation is not None]
    if not compiled:
        return
    rank, fewest = min(compiled, key=lambda repeat: repeat[1].graphs)
    if fewest.graphs == 0:
        breaks = counted(fewest.breaks, "graph break")
        yield RunCode.NOT_COMPILED.finding(
            f"rank {rank} captured no graph ({breaks}), so the model ran as without --compile",
            about=cell.name,
        )
    rank, latest = max(compiled, key=lambda repeat: repeat[1].late_graphs)
    if latest.late_graphs:
        graphs = counted(latest.graphs, "graph")
        yield RunCode.COMPILED_LATE.finding(
            f"rank {rank} compiled {latest.late_graphs} of its {graphs} after the warm-up",
            about=cell.name,
        )
