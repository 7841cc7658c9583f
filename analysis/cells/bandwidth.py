"""Columns of effective bandwidth by three definitions, what it compares with, and the utilisation
of each.

Effective bandwidth is wire bytes per step over a time per step: the bytes each rank sends, by the
bus factors of nccl-tests (doc/PERFORMANCE.md), so that it compares with a link's rate one way. The
three times: the subtraction estimate t_N(b) - t_1(b), which contains more and less than
communication; the union of communication, which contains waiting; the transfers alone.
"""

import math

import numpy as np

from dpscope.analysis.cells.estimated import ring_loads
from dpscope.analysis.cells.identity import communicating
from dpscope.analysis.cells.predicted import (
    COST_KEY,
    all_known,
    alone_us,
    by_nccl,
    cell_place,
    model_sizes,
    prediction_source,
)
from dpscope.analysis.cells.traced import collectives
from dpscope.analysis.cells.view import CellView, Group, quotient
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.text.units import show_time
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.reading.table import Table

NO_SIZES = "the trace gives no sizes for some collectives, or one has no bus factor"


def _over_a_link(cell: CellView) -> None:
    communicating(cell)
    if cell.traits.host_copies:
        raise Missing("host copies within one process: no link is used")


BANDWIDTH = Group("bandwidth", "Effective bandwidth", needs=_over_a_link)


def wire_bytes(data: Job, matched_only: bool = False) -> float | None:
    """Bytes a rank sends per step, by the trace's sizes and nccl-tests' bus factors; under DP by
    the model's.

    DP by NCCL: 2 S + S_buffers through every device. By copies: (N-1) times that through device 0,
    the busiest. None where the trace gives no sizes, or nccl-tests no factor for a kind.
    `matched_only`: of the collectives with a transfer alone.
    """
    if data.traits.peer_copies:
        return _copied_bytes(data)
    own = data.whole_collectives
    if not all_known(own, COST_KEY):
        return None
    own = own.take(own.known("transfer_us")) if matched_only else own
    sent = float((own["bytes"] * _factors(own)).sum())
    return None if math.isnan(sent) else sent / len(data.whole_windows)


def _copied_bytes(data: Job) -> float | None:
    sizes = model_sizes(data)
    if sizes is None:
        return None
    serial = 1 if by_nccl(data) else data.devices - 1
    return float(
        data.options.accumulate * serial * (2 * sizes.parameter_bytes + sizes.buffer_bytes)
    )


def _factors(own: Table) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """The bus factor of each collective, NaN where nccl-tests states none; a group of one rank
    sends nothing.
    """
    moved = own.words("moved_as").where(own.known("moved_as"), own.words("kind")).tolist()
    ranks = own["group_size"].tolist()
    pairs = zip(moved, ranks, strict=True)
    return np.array(
        [0.0 if size == 1 else bus_factor(str(kind), size) for kind, size in pairs], dtype=float
    )


def _gb_per_s(moved_bytes: float, time_us: float, reason: str) -> float:
    return quotient(moved_bytes, time_us, reason) / 1e3


def _by_subtraction(cell: CellView, moved_bytes: float) -> float:
    added_us = cell.same_local_batch_us
    no_time = f"t_N(b) - t_1(b) is {show_time(added_us)}, not a time in which bytes could move"
    return _gb_per_s(moved_bytes, added_us, no_time)


@BANDWIDTH.column("wire bytes", "bytes", "Bytes a rank sends per step, by the bus factors")
def wire_bytes_per_step(cell: CellView) -> float:
    if not cell.traits.peer_copies:
        collectives(cell)
    return known(wire_bytes(cell.data), NO_SIZES)


@BANDWIDTH.column("by subtraction", "bandwidth", "Wire bytes / (t_N(b) - t_1(b))")
def subtraction_gb_per_s(cell: CellView) -> float:
    return _by_subtraction(cell, cell.wire_bytes_per_step)


@BANDWIDTH.column(
    "ring by subtraction",
    "bandwidth",
    "Bytes of the ring formula / (t_N(b) - t_1(b)), no measured rate",
)
def ring_subtraction_gb_per_s(cell: CellView) -> float:
    loads = ring_loads(cell.data)
    return _by_subtraction(
        cell, sum((bus_factor(load.kind, load.ranks) or 0.0) * load.size_bytes for load in loads)
    )


@BANDWIDTH.column("by comm.", "bandwidth", "Wire bytes / all communication, waits included")
def communication_gb_per_s(cell: CellView) -> float:
    return _gb_per_s(
        cell.wire_bytes_per_step, cell.communication_us, "the traces show no communication"
    )


@BANDWIDTH.column("by transfer", "bandwidth", "Bus bandwidth of the all-reduces' transfers")
def transfer_gb_per_s(cell: CellView) -> float:
    return cell.busbw_gb_per_s


@BANDWIDTH.column("link", "bandwidth", "The link's specification, one way (--link, else NVML)")
def link_gb_per_s(cell: CellView) -> float:
    return known(
        cell.costs.link(cell_place(cell.data)), "no link bandwidth known: give --link"
    ).gb_per_s


@BANDWIDTH.column(
    "calibrated",
    "bandwidth",
    "Rate by the calibration's fit for messages of these sizes, without compute",
)
def calibrated_gb_per_s(cell: CellView) -> float:
    """One after another with nothing else running: DDP's all-reduces, under DP everything."""
    if cell.costs.calibration is None:
        raise Missing("no calibration was given")
    nothing = "the calibration predicts no transfer here"
    if prediction_source(cell) != "calibration":
        raise Missing(nothing)
    predicted_us = cell.predicted_transfer_us
    if cell.traits.peer_copies:
        return _gb_per_s(cell.wire_bytes_per_step, predicted_us, nothing)
    moved = known(wire_bytes(cell.data, matched_only=True), NO_SIZES)
    return _gb_per_s(moved, alone_us(cell), nothing)


@BANDWIDTH.column("comm. of link", "share", "By communication, of the link's specification")
def communication_of_link(cell: CellView) -> float:
    return cell.communication_gb_per_s / cell.link_gb_per_s


@BANDWIDTH.column("transfer of link", "share", "By transfer, of the link's specification")
def transfer_of_link(cell: CellView) -> float:
    return cell.transfer_gb_per_s / cell.link_gb_per_s


@BANDWIDTH.column("transfer of calib.", "share", "By transfer, of the calibration")
def transfer_of_calibration(cell: CellView) -> float:
    return cell.transfer_gb_per_s / cell.calibrated_gb_per_s
