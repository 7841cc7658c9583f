"""Columns of untraced steps: their time, throughput and scaling."""

from collections.abc import Iterator

import numpy as np

from dpscope.analysis.cells.identity import (
    run_measured,
    single_at_global_batch,
    single_at_same_batch,
)
from dpscope.analysis.cells.view import CellView, Group, once, quotient
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.stats.samples import (
    NO_INTERVAL,
    Estimate,
    mean_range,
    median_estimate,
    pooled_median,
    ratio_estimate,
)
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.run import TimedBlock

NO_BATCH = "the script's batch is not known (--batch-size states it)"
NO_STEP = "no step was timed"
NO_BLOCK = "no block was timed"

TIME = Group("time", "Time and scaling", needs=run_measured)


def ends_of(estimate: Estimate) -> tuple[float, float]:
    """The 95% interval of an estimate."""
    return known(estimate.low, NO_INTERVAL), known(estimate.high, NO_INTERVAL)


@once
def step(cell: CellView) -> Estimate:
    """The median untraced step of all repeats."""
    return median_estimate(cell.data.step_samples(), cell.spreads.step)


@once
def samples(cell: CellView) -> float:
    """Samples of a step over all devices."""
    if not cell.data.knows_samples:
        raise Missing(NO_BATCH)
    return float(cell.data.global_batch_size)


@TIME.column(
    "step",
    "time",
    "Median untraced step time, waiting for the loader included; its interval is from how repeats differ",
    interval=lambda cell, _: ends_of(step(cell)),
)
def step_us(cell: CellView) -> float:
    return known(step(cell).value, NO_STEP)


@TIME.column("steps", "count", "Timed steps behind the median, all repeats together")
def step_count(cell: CellView) -> int:
    return step(cell).count


@TIME.column("step w/o loader", "time", "Median step time without the wait for the loader")
def step_without_wait_us(cell: CellView) -> float:
    steps, waits = cell.data.step_samples(), cell.data.step_samples("data_wait_us")
    without = [step_us - wait_us for step_us, wait_us in zip(steps, waits, strict=True)]
    return known(pooled_median(without), NO_STEP)


def _samples_per_s_ends(cell: CellView, _: float) -> tuple[float, float]:
    """The step's interval turned over."""
    low_us, high_us = ends_of(step(cell))
    fewest, most = quotient(1e6, high_us, NO_INTERVAL), quotient(1e6, low_us, NO_INTERVAL)
    return samples(cell) * fewest, samples(cell) * most


@TIME.column(
    "samples/s",
    "rate",
    "Global batch over the median step, loader wait included",
    interval=_samples_per_s_ends,
)
def samples_per_s(cell: CellView) -> float:
    return quotient(samples(cell) * 1e6, cell.step_us, NO_STEP)


def _rates(data: Job) -> list[float]:
    timed = [
        (sum(rank.samples for rank in ranks), max(rank.duration_s for rank in ranks))
        for ranks in _blocks(data)
    ]
    return [count / seconds for count, seconds in timed if seconds > 0]


def _blocks(data: Job) -> Iterator[tuple[TimedBlock, ...]]:
    """Each timed block as every process of its repeat had it."""
    for repeat in dict.fromkeys(repeat for repeat, _ in data.ranks):
        yield from zip(
            *(rank.blocks for number, rank in data.ranks if number == repeat), strict=False
        )


@TIME.column("samples/s of blocks", "rate", "Samples of whole blocks over their time, mean")
def block_samples_per_s(cell: CellView) -> float:
    """Of each timed block, which ends with its slowest process."""
    samples(cell)  # without a batch, a process counts steps
    return known(mean_range(_rates(cell.data)).value, NO_BLOCK)


@TIME.column("steps/s", "rate", "Steps a second, of a script whose batch is not known")
def steps_per_s(cell: CellView) -> float:
    if cell.data.knows_samples:
        raise Missing("samples/s is given instead")
    return quotient(1e6, cell.step_us, NO_STEP)


@TIME.column("tokens/s", "rate", "Throughput in tokens: samples/s times tokens per sample")
def tokens_per_s(cell: CellView) -> float:
    tokens = known(cell.data.rank.tokens_per_sample, "samples are not tokens")
    return cell.samples_per_s * tokens


def scaling(cell: CellView) -> None:
    """Raises Missing where a cell's steps say nothing about what more devices gain."""
    if cell.data.no_scaling:
        raise Missing(cell.data.no_scaling)


def _over(cell: CellView, single: CellView) -> Estimate:
    """The single device's median step over the cell's."""
    return ratio_estimate(single.data.step_samples(), cell.data.step_samples(), cell.spreads.step)


@once
def same_batch_ratio(cell: CellView) -> Estimate:
    """t_1(b) / t_N(b)."""
    return _over(cell, single_at_same_batch(cell))


@once
def global_batch_ratio(cell: CellView) -> Estimate:
    """t_1(G) / t_N(G/N)."""
    return _over(cell, single_at_global_batch(cell))


def _ends(cell: CellView, ratio: Estimate) -> tuple[float, float]:
    if cell.traits.baseline:
        raise Missing("one device: 1 by definition")
    return ends_of(ratio)


@TIME.column("weak speedup", "ratio", "N t_1(b) / t_N(b): same batch per device", needs=scaling)
def weak_speedup(cell: CellView) -> float:
    return cell.weak_efficiency * cell.devices


@TIME.column(
    "weak eff.",
    "share",
    "t_1(b) / t_N(b), without the machine's drift where it is clear",
    needs=scaling,
    interval=lambda cell, _: _ends(cell, same_batch_ratio(cell)),
)
def weak_efficiency(cell: CellView) -> float:
    return known(same_batch_ratio(cell).value, NO_STEP)


@TIME.column(
    "strong speedup",
    "ratio",
    "t_1(G) / t_N(G/N): same global batch, without the machine's drift where it is clear",
    needs=scaling,
    interval=lambda cell, _: _ends(cell, global_batch_ratio(cell)),
)
def strong_speedup(cell: CellView) -> float:
    return known(global_batch_ratio(cell).value, NO_STEP)


@TIME.column("strong eff.", "share", "strong speedup / N", needs=scaling)
def strong_efficiency(cell: CellView) -> float:
    return cell.strong_speedup / cell.devices


@TIME.column("steps/epoch", "count", "Steps one epoch takes over the whole data set")
def steps_per_epoch(cell: CellView) -> int:
    return known(cell.data.rank.steps_per_epoch, "the length of an epoch is not known")


def epoch_seconds(data: Job) -> tuple[float | None, bool]:
    """Seconds per epoch and whether whole epochs were timed; else the step's median times the steps
    of an epoch.
    """
    epochs = [
        max(rank.duration_s for rank in ranks)
        for ranks in _blocks(data)
        if ranks[0].epoch is not None
    ]
    if epochs:
        return sum(epochs) / len(epochs), True
    timed = data.step_samples()
    steps = data.ranks[0][1].steps_per_epoch if data.ranks else None
    return (
        None
        if steps is None or not timed
        else float(np.median(np.concatenate(timed))) * steps / 1e6
    ), False
