"""Variants of one strategy against each other: which cells belong together, and what overlap saves."""

from dataclasses import dataclass

import msgspec

from dpscope.analysis.repeat_spreads import step_spread
from dpscope.analysis.run_analysis import CellData, RunData
from dpscope.analysis.sample_statistics import Estimate, Spread, difference_estimate, ratio_estimate, verdict
from dpscope.analysis.units import show_time
from dpscope.profiling.run_types import Cell, CellOptions, Finding


@dataclass(frozen=True)
class OverlapSaving:
    """What DDP saves by reducing gradients during backward: an untraced step without overlap less one with it.

    `saved_us` is the difference of the medians, `saved_share` that over the step without overlap (negative: overlap
    costs), both with their 95% intervals. The same two are compared by Li et al., "PyTorch Distributed", VLDB 2020, section 5.1.
    """

    without_overlap: str  # cell names
    with_overlap: str
    saved_us: Estimate
    saved_share: Estimate


def overlap_saving(run: RunData) -> list[OverlapSaving]:
    """Each measured DDP cell without overlap against those that differ from it in overlap (and buckets) alone."""
    cells = [data for data in run.measured if data.cell.strategy == "ddp"]
    spread = step_spread(run.measured)
    return [
        _saving(without, overlapped, spread)
        for without in cells
        if without.cell.options.overlap == "off"
        for overlapped in cells
        if overlapped.cell.options.overlap == "on" and _beside_buckets(overlapped.cell) == _beside_buckets(without.cell)
    ]


def _beside_buckets(cell: Cell) -> tuple[int, int, CellOptions]:
    """What two cells must share for overlap to be all that differs: without it bucket sizes mean nothing."""
    return cell.devices, cell.batch_size, msgspec.structs.replace(cell.options, overlap="on", bucket_mb=None)


def _saving(without: CellData, overlapped: CellData, spread: Spread) -> OverlapSaving:
    ratio = ratio_estimate(overlapped.step_samples(), without.step_samples(), spread)
    return OverlapSaving(
        without_overlap=without.cell.name,
        with_overlap=overlapped.cell.name,
        saved_us=difference_estimate(without.step_samples(), overlapped.step_samples(), spread),
        saved_share=Estimate(_less(ratio.value), _less(ratio.high), _less(ratio.low), ratio.count),
    )


def _less(share: float | None) -> float | None:
    return 1 - share if share is not None else None


def overlap_findings(run: RunData) -> list[Finding]:
    """`overlap_saves`, one for each pair of cells that differ in overlap alone."""
    return [_finding(saving, run.manifest.device_type) for saving in overlap_saving(run)]


def _finding(saving: OverlapSaving, device_type: str) -> Finding:
    saved, share = saving.saved_us, saving.saved_share
    assert saved.value is not None  # both cells are measured
    assert share.value is not None
    pair = f"{saving.with_overlap} against {saving.without_overlap}"
    amount = f"{show_time(abs(saved.value))} a step, {abs(share.value):.1%} of the step without it"
    shown = verdict(saved, even=0.0)
    if saved.low is None or saved.high is None or share.low is None or share.high is None:
        message = f"{pair}: overlap saves {_signed(saved.value)} a step by {saved.count} steps: no interval, no verdict"
        return _overlap_saves(message, "time two repeats or more (--repeats), of five steps in all or more (--steps)")
    interval = (
        f"95% interval {_signed(saved.low)} to {_signed(saved.high)}, {share.low:.1%} to {share.high:.1%}; "
        f"{saved.count} steps"
    )
    where = ", sharing the cores with it" if device_type == "cpu" else ""
    if shown == "above":
        message = f"{pair}: overlap saves {amount} ({interval})"
        advice = (
            f"gradients are reduced during backward{where}; set DP beside the cell without overlap for a fair match"
        )
    elif shown == "below":
        message = f"{pair}: overlap costs {amount} (saving: {interval})"
        advice = f"reducing during backward slows it{where}; try --overlap off or larger buckets (--bucket-mb)"
    else:
        message = f"{pair}: no difference by overlap is shown (saving {_signed(saved.value)} a step, {interval})"
        advice = "time more repeats (--repeats) if a small difference matters"
    return _overlap_saves(message, advice)


def _overlap_saves(message: str, advice: str) -> Finding:
    return Finding(severity="info", code="overlap_saves", message=message, next_step=advice)


def _signed(microseconds: float) -> str:
    return f"{'-' if microseconds < 0 else ''}{show_time(abs(microseconds))}"


def singles_like(run: RunData, cell: Cell) -> dict[int, CellData]:
    """The measured single-device cells that a cell may be set against, by batch size: those that accumulate alike."""
    return {
        data.cell.batch_size: data
        for data in run.measured
        if data.cell.strategy == "single" and data.cell.options.accumulate == cell.options.accumulate
    }


def opponents(run: RunData) -> list[tuple[CellData, CellData]]:
    """Measured DP and DDP cells to be compared: equal devices, batch and micro-batches.

    DDP's are the one by default and the one without overlap, DP's fair opponent, since DP overlaps nothing; other variants
    are DDP's alone, and are compared among themselves.
    """
    return [
        (dp, ddp)
        for dp in run.measured
        if dp.cell.strategy in ("dp", "dp-host")
        for ddp in run.measured
        if ddp.cell.strategy == "ddp"
        and (ddp.cell.devices, ddp.cell.batch_size) == (dp.cell.devices, dp.cell.batch_size)
        and msgspec.structs.replace(ddp.cell.options, overlap="on") == dp.cell.options
    ]
