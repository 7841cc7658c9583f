"""Columns of traced steps: the ledger with its intervals, means of the breakdown, and what
moves.
"""

import numpy as np

from dpscope.analysis.cells.cell_ledger import (
    NO_INTERVAL,
    NOT_MATCHED,
    NOT_SHOWN,
    ONE_PROCESS,
    change_us,
    contentions_shown,
    exposed,
    interval_of,
    ledger,
    no_traced_step,
    traced_ledger,
)
from dpscope.analysis.cells.identity import communicating, communication_shown, measured
from dpscope.analysis.cells.view import CellView, Group, once, quotient
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.stats.missing import Missing, known
from dpscope.analysis.stats.samples import half_width
from dpscope.analysis.traces.ranks.whole_steps import STEP_KEYS
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.intervals import length, union

OF_GPUS = "a CPU trace does not show it"
NO_RANGE = "the traces hold no range of this phase"
FEW_KERNELS = "too few places of kernels, or too few free kernels: no interval"

TRACED = Group("communication", "Where a traced step goes", needs=measured)


@once
def windows(cell: CellView) -> Table:
    """The whole traced steps that a cell's means are of."""
    if not len(cell.data.critical_windows):
        raise Missing(no_traced_step(cell))
    return cell.data.critical_windows


def mean(cell: CellView, measure: str, unknown: str) -> float:
    """Of a column of the breakdown over whole traced steps; `unknown` is why a trace may lack
    it.
    """
    return known(windows(cell).mean(measure), unknown)


@TRACED.column(
    "traced step", "time", "Mean window of the traced steps", interval=interval_of("traced_step")
)
def traced_step_us(cell: CellView) -> float:
    return ledger(cell).traced_step_us


@TRACED.column("traced windows", "count", "Windows behind the means, one per rank, device and step")
def traced_step_count(cell: CellView) -> int:
    return len(windows(cell))


@TRACED.column(
    "compute",
    "time",
    "Time in which the device computes, overlapping kernels counted once",
    interval=interval_of("compute"),
)
def compute_us(cell: CellView) -> float:
    return known(ledger(cell).compute_us, NOT_SHOWN)


@TRACED.column(
    "wait",
    "time",
    "Exposed communication in which a collective waits for a late rank and none transfers",
    interval=interval_of("exposed_wait"),
)
def exposed_wait_us(cell: CellView) -> float:
    return exposed(cell, ledger(cell).exposed_wait_us)


@TRACED.column(
    "transfer",
    "time",
    "Exposed communication in which at least one matched collective transfers",
    interval=interval_of("exposed_transfer"),
)
def exposed_transfer_us(cell: CellView) -> float:
    return exposed(cell, ledger(cell).exposed_transfer_us)


@TRACED.column(
    "other",
    "time",
    "Exposed communication without a separate wait and transfer: broadcasts, reduces, copies, unmatched collectives",
    interval=interval_of("exposed_other"),
)
def exposed_other_us(cell: CellView) -> float:
    return exposed(cell, ledger(cell).exposed_other_us)


@TRACED.column(
    "idle",
    "time",
    "Neither compute nor communication",
    interval=interval_of("idle"),
    needs=communication_shown,
)
def idle_us(cell: CellView) -> float:
    return known(ledger(cell).idle_us, NOT_SHOWN)


@TRACED.column(
    "untraced - traced",
    "time",
    "Untraced step minus traced step: negative if tracing slows it",
    interval=interval_of("tracer"),
)
def tracer_us(cell: CellView) -> float:
    return known(ledger(cell).tracer_us, "no untraced step was timed")


@TRACED.column(
    "slowdown",
    "time",
    "Compute minus that of one device at the same batch",
    interval=interval_of("slowdown"),
)
def slowdown_us(cell: CellView) -> float:
    return change_us(cell, "compute")


@TRACED.column(
    "contention",
    "time",
    "What hidden communication costs the compute next to it",
    interval=lambda cell, _: known(ledger(cell).intervals.get("contention"), FEW_KERNELS),
)
def contention_us(cell: CellView) -> float:
    return known(ledger(cell).contention_us, contentions_shown(cell).reason)


@TRACED.column(
    "contention ratio",
    "ratio",
    "Compute next to communication over the same compute on one device, or over the cell's own free kernels",
    interval=lambda cell, _: known(ledger(cell).contention_ratio_interval, FEW_KERNELS),
)
def contention_ratio(cell: CellView) -> float:
    return known(ledger(cell).contention_ratio, contentions_shown(cell).reason)


@TRACED.column(
    "comm.", "time", "Union of communication (dp-host: host copies)", needs=communicating
)
def communication_us(cell: CellView) -> float:
    return mean(cell, "communication_us", OF_GPUS)


@TRACED.column("hidden", "time", "Communication while the device computes", needs=communicating)
def hidden_us(cell: CellView) -> float:
    return mean(cell, "hidden_us", OF_GPUS)


@TRACED.column(
    "exposed",
    "time",
    "Communication while nothing computes: wait, transfer, other",
    needs=communicating,
    interval=interval_of("exposed"),
)
def exposed_us(cell: CellView) -> float:
    return mean(cell, "exposed_us", OF_GPUS)


def _matched(cell: CellView, measure: str) -> float:
    return mean(cell, measure, ONE_PROCESS if cell.traits.threaded else NOT_MATCHED)


def _transfer_ends(cell: CellView, value: float) -> tuple[float, float]:
    """From how the repeats differ, cut at 0; none that is wider than the step, as of its parts."""
    matched = windows(cell).take(windows(cell).known("transfer_us"))
    repeats = matched.group("repeat").means(matched["transfer_us"])
    half_us = half_width(repeats)
    if half_us is None or half_us >= traced_step_us(cell):
        raise Missing(NO_INTERVAL)
    return max(0.0, value - half_us), value + half_us


@TRACED.column(
    "all transfers",
    "time",
    "Sum over collectives of the shortest rank's duration",
    needs=communicating,
    interval=_transfer_ends,
)
def transfer_us(cell: CellView) -> float:
    return _matched(cell, "transfer_us")


@TRACED.column(
    "all waiting", "time", "Time in collectives spent waiting for a later rank", needs=communicating
)
def wait_us(cell: CellView) -> float:
    return _matched(cell, "wait_us")


@TRACED.column(
    "queue", "time", "Time gloo's collectives waited for a worker thread", needs=communicating
)
def queue_us(cell: CellView) -> float:
    own = collectives(cell)
    if not own.known("queue_us").any():
        raise Missing("only gloo's collectives queue")
    return float(np.nansum(own["queue_us"])) / len(cell.data.whole_windows)


@TRACED.column("host copies", "time", "Host copies outside compute and communication")
def host_copy_us(cell: CellView) -> float:
    return mean(cell, "host_copy_us", OF_GPUS)


@TRACED.column("not launched", "time", "Part of idle in which nothing had been launched")
def unlaunched_us(cell: CellView) -> float:
    return mean(cell, "unlaunched_us", OF_GPUS)


@TRACED.column(
    "critical device",
    "count",
    "Of a process with several devices (DataParallel): the one that is least idle, whose values the row gives",
)
def critical_device(cell: CellView) -> int:
    several = len(windows(cell)) < len(cell.data.whole_windows)
    return known(
        traced_ledger(cell).critical_device if several else None, "each process has one device"
    )


@TRACED.column("to device", "time", "Time of copying a batch to the device")
def host_to_device_us(cell: CellView) -> float:
    return mean(cell, "host_to_device_us", NO_RANGE)


@TRACED.column("forward", "time", "Compute of the forward pass")
def forward_us(cell: CellView) -> float:
    return mean(cell, "forward_us", NO_RANGE)


@TRACED.column("backward", "time", "Compute of the backward pass, without communication")
def backward_us(cell: CellView) -> float:
    return mean(cell, "backward_us", NO_RANGE)


@TRACED.column("optimizer", "time", "Compute of the optimizer's step")
def optimizer_us(cell: CellView) -> float:
    return mean(cell, "optimizer_us", NO_RANGE)


@TRACED.column("comm. share", "share", "Communication / traced step", needs=communicating)
def communication_share(cell: CellView) -> float:
    return quotient(cell.communication_us, mean(cell, "step_us", NOT_SHOWN), NOT_SHOWN)


@TRACED.column("exposed share", "share", "Exposed communication / traced step", needs=communicating)
def exposed_share(cell: CellView) -> float:
    return quotient(cell.exposed_us, mean(cell, "step_us", NOT_SHOWN), NOT_SHOWN)


def _moved_by_copies(cell: CellView) -> bool:
    return cell.traits.peer_copies and not len(cell.data.tables.collectives)


@once
def collectives(cell: CellView) -> Table:
    """Those of the whole traced steps."""
    windows(cell)
    if _moved_by_copies(cell):
        raise Missing("moved by copies between devices: no collective")
    if not len(cell.data.tables.collectives):
        by_copies = " (dp-host copies within one process)" if cell.traits.host_copies else ""
        raise Missing(f"the trace shows no collective{by_copies}")
    return cell.data.whole_collectives


@TRACED.column(
    "bytes/step",
    "bytes",
    "Collectives' buffers per rank and step; DP by copies: bytes a device sends to others",
    needs=communicating,
)
def bytes_per_step(cell: CellView) -> float:
    if _moved_by_copies(cell):
        return _bytes_copied(cell)
    own = collectives(cell)
    if not len(own) or not own.known("bytes").all():
        raise Missing("the trace gives no sizes for some collectives")
    return float(own["bytes"].sum()) / len(cell.data.whole_windows)


def _bytes_copied(cell: CellView) -> float:
    """What a device sends to others, the mean over devices and steps."""
    windows(cell)
    copied = cell.data.tables.copies.within(cell.data.whole_windows, ("repeat", "device", "step"))
    if not len(copied):
        raise Missing("the trace shows neither a collective nor a copy between devices")
    return float(copied["bytes"].sum()) / len(cell.data.whole_windows)


@TRACED.column("collectives", "count", "Collectives per rank and step", needs=communicating)
def collectives_per_step(cell: CellView) -> float:
    return len(collectives(cell)) / len(cell.data.whole_windows)


@once
def _all_reduces(cell: CellView) -> Table:
    """The matched ones with a size."""
    reduced = collectives(cell).having("kind", "all_reduce")
    return reduced.take(reduced.known("transfer_us") & reduced.known("bytes"))


@once
def _transfer_union_us(cell: CellView) -> float:
    """Time in which a rank's all-reduces transferred, over ranks and steps; of several at once the
    link has one rate.

    A rank's wait comes first: a transfer is the end of its collective.
    """
    reduced = _all_reduces(cell)
    ends = reduced["start_us"] + reduced["duration_us"]
    starts = ends - reduced["transfer_us"]
    return float(
        sum(length(union(starts[rows], ends[rows])) for rows in reduced.group(*STEP_KEYS).rows())
    )


def _rate(cell: CellView, moved_bytes: float) -> float:
    return (
        quotient(moved_bytes, _transfer_union_us(cell), "no matched all-reduce with a size") / 1e3
    )


@TRACED.column(
    "algbw", "bandwidth", "All-reduce bytes / transfer (nccl-tests)", needs=communicating
)
def algbw_gb_per_s(cell: CellView) -> float:
    return _rate(cell, float(_all_reduces(cell)["bytes"].sum()))


@TRACED.column("busbw", "bandwidth", "algbw x 2(N-1)/N (nccl-tests)", needs=communicating)
def busbw_gb_per_s(cell: CellView) -> float:
    reduced = _all_reduces(cell)
    ranks = np.where(reduced.known("group_size"), reduced["group_size"], cell.devices).tolist()
    factors = np.array([bus_factor("all_reduce", count) for count in ranks], dtype=float)
    return _rate(cell, float((reduced["bytes"] * factors).sum()))
