"""One cell of a run as a row of the comparison, with the reason for each missing value."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import numpy as np

from dpscope.analysis.cells.cell_ledger import LOST, NOT_MATCHED, ONE_PROCESS, put_ledger
from dpscope.analysis.cells.columns import COLUMNS, INTERVAL, NAMES, RANK_RANGE, STEP_MEANS, VALUE_RANGE
from dpscope.analysis.cells.device_use import CpuPeaks, put_device_use
from dpscope.analysis.cells.estimated import BANDWIDTH_COLUMNS, put_bandwidths, put_estimates, single_step_us
from dpscope.analysis.cells.row import NO_GLOBAL_BATCH, NO_SAME_BATCH, RowBuilder, ratio
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.cell_data import STEP_KEYS, TRACES_ALONE, CellData, RunSpreads, knows_batch
from dpscope.analysis.stats import samples as stats
from dpscope.analysis.traces.reading.table import Table
from dpscope.analysis.traces.steps.intervals import length, union
from dpscope.profiling.machine.gpu_speed import StatedFlops
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import TimedBlock

_DEVICE_MEANS = tuple(f"{name}_device_mean_us" for name in ("compute", "communication", "exposed", "idle"))
_MATCHED = ("transfer_us", "wait_us")
_TRAFFIC = ("bytes_per_step", "collectives_per_step", "algbw_gb_per_s", "busbw_gb_per_s", "queue_us")
_COMMUNICATION = (
    "communication_us", *RANK_RANGE.of("communication_us"), "hidden_us", "exposed_us", *RANK_RANGE.of("exposed_us"), *_MATCHED,
    "communication_share", "exposed_share", "communication_device_mean_us", "exposed_device_mean_us", *_TRAFFIC,
)  # fmt: skip
_SCALING = (
    *("weak_speedup", "weak_efficiency", *INTERVAL.of("weak_efficiency")),
    *("strong_speedup", "strong_efficiency", *INTERVAL.of("strong_speedup")),
)
_OF_RUNS = tuple(column.name for column in COLUMNS if column.group in ("time", "checks"))
_NO_BATCH = "the script's batch is not known (--batch-size states it)"


def summarise_cell(
    data: CellData,
    singles: Mapping[int, CellData],
    sources: CostSources,
    spreads: RunSpreads,
    peaks: CpuPeaks = MappingProxyType({}),
    flops: StatedFlops | None = None,
) -> RowBuilder:
    """The row of one cell. `singles` are the measured single-device cells by batch size; `spreads` and `peaks` are of all cells.

    `flops` are the FLOPs that a user states of a cell that did not count them.
    """
    row, cell, status = RowBuilder(), data.cell, _status(data)
    row.put("", cell=cell.name, strategy=cell.strategy, devices=cell.devices, nodes=data.nodes, status=status)
    if knows_batch(cell):
        row.put("", batch_size=cell.batch_size, global_batch_size=data.global_batch_size)
    else:
        row.clear(("batch_size", "global_batch_size"), TRACES_ALONE)
    if not data.measured:
        row.clear(tuple(name for name in NAMES if row.values[name] is None), f"not measured: {status}")
        return row
    if data.ranks:
        _put_times(row, data, spreads.step)
        _put_scaling(row, data, singles, spreads.step)
        _put_checks(row, data)
    else:
        row.clear(_OF_RUNS, TRACES_ALONE)
    if data.no_scaling:
        row.clear(_SCALING, data.no_scaling)
    _put_breakdown(row, data)
    put_ledger(row, data, singles.get(cell.batch_size) if knows_batch(cell) else None, spreads)
    if data.ranks:  # of the two values that `tracer_us` is the difference of
        row.put("no whole traced step", tracer_cost=ratio(row.number("traced_step_us"), row.number("step_us")))
    put_device_use(row, data, peaks, flops)
    _put_traffic(row, data)
    silent = "one device: nothing to communicate" if cell.devices == 1 else "" if data.communication_known else LOST
    if silent:
        row.clear(_COMMUNICATION, silent)
    put_estimates(row, data, singles, sources, spreads)
    if silent:
        row.clear(BANDWIDTH_COLUMNS, silent)
    else:
        put_bandwidths(row, data, sources)
    if silent == LOST:
        row.clear((*(name for name in NAMES if name.startswith("predict")), "idle_device_mean_us"), LOST)
    for column in NAMES:
        if row.values[column] is None:
            row.reasons.setdefault(column, "not measured")
    return row


def _status(data: CellData) -> str:
    failed = [result for result in data.results if result.status != "ok"]
    if data.measured:
        return "ok" if not failed else f"ok, {counted(len(failed), 'repeat')} {failed[0].status}"
    if data.skip_reason is not None:
        return f"skipped: {data.skip_reason}"
    return failed[-1].status if failed else "not run"


def _put_times(row: RowBuilder, data: CellData, spread: stats.Spread) -> None:
    """The step, and samples, tokens and steps per second, all of the median step; its interval turned over is theirs."""
    step = stats.median_estimate(data.step_samples(), spread)
    without = [total - wait for total, wait in zip(data.step_samples(), data.step_samples("data_wait_us"), strict=True)]
    unloaded_us = stats.pooled_median(without)
    row.put(stats.NO_INTERVAL, step_us=step.value, step_count=step.count, step_without_wait_us=unloaded_us)
    row.put_interval(stats.NO_INTERVAL, "step_us", step)
    size = float(data.global_batch_size) if data.knows_samples else None
    tokens, rate = data.ranks[0][1].tokens_per_sample, _per_second(size, step.value)
    row.put(_NO_BATCH, samples_per_s=rate, samples_per_s_without_wait=_per_second(size, unloaded_us))
    ends = stats.Interval(1e6 / step.high, 1e6 / step.low) if step.low and step.high else None
    scaled = stats.Interval(size * ends.low, size * ends.high) if size is not None and ends is not None else None
    row.put_interval(stats.NO_INTERVAL if size is not None else _NO_BATCH, "samples_per_s", scaled)
    row.put("samples/s is given instead", steps_per_s=None if size is not None else _per_second(1.0, step.value))
    tokens_per_s = rate * tokens if tokens is not None and rate is not None else None
    row.put("samples are not tokens" if tokens is None else _NO_BATCH, tokens_per_s=tokens_per_s)
    slowest = [(max(one.duration_s for one in ranks), ranks) for ranks in _blocks(data)]
    rates = [sum(one.samples for one in ranks) / seconds for seconds, ranks in slowest if seconds > 0]
    blocks = stats.mean_range(rates)
    row.put("no block was timed", block_count=blocks.count)
    known = (blocks.value, blocks.smallest, blocks.largest) if size is not None else (None, None, None)
    columns = dict(zip(("block_samples_per_s", *VALUE_RANGE.of("block_samples_per_s")), known, strict=True))
    row.put("no block was timed" if size is not None else _NO_BATCH, **columns)


def _per_second(count: float | None, time_us: float | None) -> float | None:
    return count * 1e6 / time_us if count is not None and time_us else None


def _blocks(data: CellData) -> Iterator[tuple[TimedBlock, ...]]:
    """Each timed block as every process of its repeat had it."""
    for repeat in dict.fromkeys(repeat for repeat, _ in data.ranks):
        yield from zip(*(rank.blocks for number, rank in data.ranks if number == repeat), strict=False)


def epoch_seconds(data: CellData) -> tuple[float | None, bool]:
    """Seconds per epoch and whether whole epochs were timed; else the step's median times the steps of an epoch."""
    epochs = [max(one.duration_s for one in ranks) for ranks in _blocks(data) if ranks[0].epoch is not None]
    if epochs:
        return sum(epochs) / len(epochs), True
    samples = data.step_samples()
    steps = data.ranks[0][1].steps_per_epoch if data.ranks else None
    return (None if steps is None or not samples else float(np.median(np.concatenate(samples))) * steps / 1e6), False


def _put_scaling(row: RowBuilder, data: CellData, singles: Mapping[int, CellData], spread: stats.Spread) -> None:
    """Speedups and efficiencies with the intervals of t_1 over the step; on one device they are 1 by definition."""
    cell, step_us = data.cell, row.number("step_us")
    few = "one device: 1 by definition" if cell.traits.baseline else stats.NO_INTERVAL
    for kind, batch, of, no_single in (
        ("weak", cell.batch_size, "weak_efficiency", NO_SAME_BATCH),
        ("strong", data.global_batch_size, "strong_speedup", NO_GLOBAL_BATCH),
    ):
        single_us, single = single_step_us(singles, batch), singles.get(batch)
        times = single_us / step_us if single_us is not None and step_us else None
        more, less = (cell.devices, 1) if kind == "weak" else (1, cell.devices)
        speedup, efficiency = (None, None) if times is None else (times * more, times / less)
        row.put(no_single, **{f"{kind}_speedup": speedup, f"{kind}_efficiency": efficiency})
        bounds = stats.UNKNOWN
        if single is not None and not cell.traits.baseline:
            bounds = stats.ratio_estimate(single.step_samples(), data.step_samples(), spread)
        row.put_interval(no_single if single_us is None else few, of, bounds)
    row.put("the length of an epoch is not known", steps_per_epoch=data.ranks[0][1].steps_per_epoch)


def _put_breakdown(row: RowBuilder, data: CellData) -> None:
    every, windows = data.whole_windows, data.critical_windows
    if not len(windows):
        row.clear((*STEP_MEANS, *_DEVICE_MEANS, "critical_device"), "no whole traced step")
        return
    means = {column: windows.mean(column) for column in (*STEP_MEANS, "step_us", *_MATCHED)}
    several = len(windows) < len(every)
    row.put("", traced_step_count=len(windows))
    row.put(
        "each process has one device",
        critical_device=data.traced_ledger.critical_device if several and data.traced_ledger is not None else None,
        **{name: every.mean(name.replace("_device_mean", "")) if several else None for name in _DEVICE_MEANS},
    )
    for column, unknown in STEP_MEANS.items():
        row.put(unknown, **{column: means[column]})
    unmatched = ONE_PROCESS if data.cell.traits.threaded else NOT_MATCHED
    row.put(unmatched, **{column: means[column] for column in _MATCHED})
    for name in ("communication", "exposed"):
        per_rank = every.group("rank", "device", in_order=True).means(every[f"{name}_us"])
        row.put_rank_range("not measured", f"{name}_us", stats.mean_range(per_rank[~np.isnan(per_rank)].tolist()))
        value, step_us = means[f"{name}_us"], means["step_us"]
        row.put("not measured", **{f"{name}_share": value / step_us if value is not None and step_us else None})


def _put_traffic(row: RowBuilder, data: CellData) -> None:
    """What moves; under DataParallel without NCCL the bytes that a device sends to others, the mean over devices and steps."""
    windows, own = data.whole_windows, data.whole_collectives
    known = len(data.tables.collectives) > 0
    if data.cell.traits.peer_copies and not known and len(windows):
        row.clear(_TRAFFIC, "moved by copies between devices: no collective")
        copied = data.tables.copies.within(windows, ("repeat", "device", "step"))
        sent = float(copied["bytes"].sum()) / len(windows) if len(copied) else None
        row.put("the trace shows neither a collective nor a copy between devices", bytes_per_step=sent)
        return
    if not len(windows) or not known:
        by_copies = "" if known else " (dp-host copies within one process)"
        row.clear(_TRAFFIC, f"the trace shows no collective{by_copies}")
        return
    sizes_known = len(own) > 0 and bool(own.known("bytes").all())
    row.put(
        "the trace gives no sizes for some collectives",
        bytes_per_step=float(own["bytes"].sum()) / len(windows) if sizes_known else None,
        collectives_per_step=len(own) / len(windows),
    )
    queued = float(np.nansum(own["queue_us"])) / len(windows) if own.known("queue_us").any() else None
    row.put("only gloo's collectives queue", queue_us=queued)
    reduced = own.having("kind", "all_reduce")
    reduced = reduced.take(reduced.known("transfer_us") & reduced.known("bytes"))
    transfer_us = _transfer_union_us(reduced)
    ranks = np.where(reduced.known("group_size"), reduced["group_size"], data.cell.devices).tolist()
    factors = np.array([bus_factor("all_reduce", count) for count in ranks], dtype=float)
    moved = (float(reduced["bytes"].sum()), float((reduced["bytes"] * factors).sum()))
    rates = [one / transfer_us / 1e3 if transfer_us > 0 else None for one in moved]
    row.put("no matched all-reduce with a size", algbw_gb_per_s=rates[0], busbw_gb_per_s=rates[1])


def _transfer_union_us(reduced: Table) -> float:
    """Time in which a rank's collectives transferred, added up over ranks and steps; of several at once the link has one rate.

    A rank's wait comes first: a transfer is the end of its collective.
    """
    ends = reduced["start_us"] + reduced["duration_us"]
    starts = ends - reduced["transfer_us"]
    return float(sum(length(union(starts[rows], ends[rows])) for rows in reduced.group(*STEP_KEYS).rows()))


def _put_checks(row: RowBuilder, data: CellData) -> None:
    ranks = [rank for _, rank in data.ranks]
    ratios = [check.span_ratio for check in data.counter_checks if check.span_ratio is not None]
    reasons = [check.not_comparable for check in data.counter_checks]
    reasons += [rank.attached.counters_missing for rank in ranks if rank.attached is not None]
    why = next(filter(None, reasons), None) if data.cell.traits.reducer and data.cell.devices > 1 else None
    row.put(
        f"DDP's counters were not compared: {why}"
        if why
        else "only DDP on several devices has a pass with its counters",
        counter_span_ratio=float(np.median(ratios)) if ratios else None,
        counter_buckets_equal=all(check.buckets_equal for check in data.counter_checks) if ratios else None,
    )
    held = [rank.state_bytes for rank in ranks if rank.state_bytes is not None]
    row.put("not recorded by older versions of dpscope or for a user's script", state_bytes=max(held, default=None))
    compiled = [rank.compilation for rank in ranks if rank.compilation is not None]
    row.put(
        "not a compiled cell",
        compile_us=max((one.seconds * 1e6 for one in compiled), default=None),
        compiled_parts=max((one.parts for one in compiled), default=None),
    )
    for name in ("allocated_bytes", "reserved_bytes"):
        peak = max((getattr(memory, name) for rank in ranks for memory in rank.memory), default=None)
        row.put("the CPU's allocator keeps no peak", **{f"peak_{name}": peak})
