"""Variants of one strategy against each other: which cells belong together, and what each option
saves or costs.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import (
    Estimate,
    Verdict,
    difference_estimate,
    ratio_estimate,
    verdict,
)
from dpscope.analysis.text.units import show_changes
from dpscope.analysis.traces.ranks.job import Job
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.run import Cell, CellOptions
from dpscope.profiling.records.run_codes import RunCode


@dataclass(frozen=True)
class VariantSaving:
    """What one option saves: an untraced step without it minus one with it, all else being equal.

    `saved_us` is the difference of the medians, `saved_share` that over the step without it
    (negative: it costs), both with their 95% intervals. Of overlap the same two are compared by Li
    et al., "PyTorch Distributed", VLDB 2020, section 5.1.
    """

    option: str  # field of CellOptions
    what: str  # the option in words
    without: str  # cell names
    having: str
    saved_us: Estimate
    saved_share: Estimate


def variant_savings(run: RunData) -> list[VariantSaving]:
    """For each pair of conclusive cells that differ in one option, at its default in one of them,
    what that option saves.

    Overlap is DDP's default, and buckets mean nothing without it: a cell without is set against
    those with it that differ from it in overlap and buckets alone.
    """
    spread, found = run.spreads.step, []
    conclusive = [data for data in run.measured if not data.no_scaling]
    for without, having in itertools.product(conclusive, conclusive):
        if (
            having.nodes != without.nodes
            or (option := _only_option(having.cell, without.cell)) is None
        ):
            continue
        share = ratio_estimate(having.step_samples(), without.step_samples(), spread)
        value, low, high = (
            None if end is None else 1 - end for end in (share.value, share.high, share.low)
        )
        saved_us = difference_estimate(without.step_samples(), having.step_samples(), spread)
        what, saved_share = (
            _in_words(option, having.cell.options),
            Estimate(value, low, high, share.count),
        )
        found.append(VariantSaving(option, what, without.name, having.name, saved_us, saved_share))
    return found


def _only_option(having: Cell, without: Cell) -> str | None:
    """The option that one cell has and another lacks, if it is all that they differ in."""
    if msgspec.structs.replace(having, variant="", options=without.options) != without:
        return None
    if (having.options.overlap, without.options.overlap) == ("on", "off"):
        with_overlap = msgspec.structs.replace(
            without.options, overlap="on", bucket_mb=having.options.bucket_mb
        )
        return "overlap" if with_overlap == having.options else None
    own, other, default = map(
        msgspec.structs.asdict, (having.options, without.options, CellOptions())
    )
    differing = [field for field in own if own[field] != other[field]]
    if (
        len(differing) != 1
        or differing == ["overlap"]
        or other[differing[0]] != default[differing[0]]
    ):
        return None
    return differing[0]


def _in_words(option: str, options: CellOptions) -> str:
    """The option as it was given, such as ``--comm-hook fp16``."""
    value = getattr(options, option)
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    return "overlap" if option == "overlap" else f"--{option.replace('_', '-')} {shown}"


_SAVINGS: dict[Verdict, str] = {
    "above": "faster",
    "below": "slower",
    "no_difference_shown": "no significant difference",
    "too_few_samples": "too few steps or repeats to tell",
}


def variant_findings(run: RunData) -> Iterator[Finding]:
    """`variant_saves`, one for each pair of cells that differ in one option alone."""
    return map(_finding, variant_savings(run))


def _finding(saving: VariantSaving) -> Finding:
    saved = saving.saved_us
    share = saving.saved_share
    shown = verdict(saved, even=0.0)
    assert saved.value is not None  # both cells are measured
    assert share.value is not None
    option = f"--{saving.option.replace('_', '-')}"
    actions: dict[Verdict, str] = {
        "above": f"use {option} if its other effects are acceptable: docs/variants.md",
        "below": f"omit {option} on this machine, unless you need it for a reason other than speed",
        "no_difference_shown": "time more repeats (--repeats) if a small difference matters",
        "too_few_samples": "time more repeats (--repeats), of five steps in all or more (--steps)",
    }
    if saving.option == "overlap":
        actions["above"] = "compare DP with the cell without overlap: DP does not overlap either"
        actions["below"] = "try --overlap off or larger buckets (--bucket-mb)"
    interval = "no interval"
    changes_us = [-saved.value]
    if saved.low is not None and saved.high is not None:
        changes_us += [-saved.high, -saved.low]
    change, *ends = show_changes(changes_us)
    if ends:
        interval = f"95% interval {' to '.join(ends)}"
    change = f"{change}, {-share.value:+.1%}"
    steps = counted(saved.count, "step")
    return RunCode.VARIANT_SAVES.finding(
        f"with {saving.what} a step changes by {change} ({interval}, {steps}): {_SAVINGS[shown]}",
        actions[shown],
        about=f"{saving.having} against {saving.without}",
    )


def single_device_baselines(cells: Iterable[Job], cell: Cell | None) -> dict[int, Job]:
    """Of the cells those of a single device that a cell is compared with, by batch size: the same
    options.

    Accumulation may differ if the micro-batches are of one size: a script that keeps its global
    batch divides accumulation by the number of devices. Of two at one batch the one with the same
    accumulation is taken.
    """
    if cell is None:
        return {}
    options = shared_options(cell.options)
    singles = [data for data in cells if data.traits.baseline]
    same = [data for data in singles if shared_options(data.cell.options) == options]
    alike = [
        data
        for data in singles
        if msgspec.structs.replace(shared_options(data.cell.options), accumulate=options.accumulate)
        == options
        and data.cell.batch_size * options.accumulate
        == cell.batch_size * data.cell.options.accumulate
    ]
    return {data.cell.batch_size: data for data in (*alike, *same)}


def series_variant(cell: Cell, single: Cell) -> str:
    """What a cell's series is called next to one device: its variant, without an accumulation that
    falls as devices are added.
    """
    if cell.options.accumulate == single.options.accumulate:
        return cell.variant
    options = msgspec.structs.replace(cell.options, accumulate=1)
    return (
        f"{options.name} in micro-batches of {cell.batch_size // cell.options.accumulate}".strip()
    )


def shared_options(options: CellOptions) -> CellOptions:
    """Of a cell's options those that every strategy has."""
    return CellOptions(accumulate=options.accumulate, amp=options.amp, compile=options.compile)


def strategy_pairs(run: RunData) -> list[tuple[Job, Job]]:
    """Measured DP and DDP cells to be compared: equal devices, batch and micro-batches.

    DDP's are the one by default and the one without overlap, DP's fair opponent, since DP overlaps
    nothing; other variants are DDP's alone, and are compared among themselves.
    """
    return [
        (dp, ddp)
        for dp in run.measured
        if dp.traits.threaded
        for ddp in run.measured
        if ddp.traits.plain_reducer
        and (ddp.devices, ddp.nodes, ddp.cell.batch_size) == (dp.devices, 1, dp.cell.batch_size)
        and msgspec.structs.replace(ddp.cell.options, overlap="on") == dp.cell.options
    ]
