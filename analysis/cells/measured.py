"""One cell of a run as a row of the comparison, with the reason for each missing value."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd

from dpscope.analysis.cells.bandwidths import BANDWIDTH_COLUMNS, put_bandwidths
from dpscope.analysis.cells.cell_ledger import LOST, put_ledger
from dpscope.analysis.cells.columns import COLUMNS, INTERVAL, NAMES, RANK_RANGE
from dpscope.analysis.cells.device_use import CpuPeaks, put_device_use
from dpscope.analysis.cells.estimated import put_estimates, single_step_us
from dpscope.analysis.cells.row import RowBuilder
from dpscope.analysis.cells.subtraction import NO_GLOBAL_BATCH, NO_SAME_BATCH
from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.cell_data import TRACES_ALONE, CellData, knows_batch
from dpscope.analysis.runs.spreads import RunSpreads
from dpscope.analysis.stats.samples import (
    NO_INTERVAL,
    UNKNOWN,
    Estimate,
    Interval,
    Range,
    Spread,
    mean_range,
    median_estimate,
    pooled_median,
    ratio_estimate,
)
from dpscope.analysis.traces.steps.intervals import length, union
from dpscope.profiling.machine.gpu_speed import StatedFlops
from dpscope.profiling.records.finding import counted

_MEANS = ("communication_us", "hidden_us", "exposed_us", "host_copy_us", "device_copy_us", "unlaunched_us")
_PHASES = ("data_us", "host_to_device_us", "forward_us", "backward_us", "optimizer_us")
_DEVICE_MEANS = (
    "compute_device_mean_us",
    "communication_device_mean_us",
    "exposed_device_mean_us",
    "idle_device_mean_us",
)
_MATCHED = ("transfer_us", "wait_us")
_COMMUNICATION = (
    "communication_us", *RANK_RANGE.of("communication_us"), "hidden_us", "exposed_us", *RANK_RANGE.of("exposed_us"),
    "transfer_us", "wait_us", "communication_share",
    "exposed_share", "communication_device_mean_us", "exposed_device_mean_us",
    "bytes_per_step", "collectives_per_step", "algbw_gb_per_s", "busbw_gb_per_s", "queue_us",
)  # fmt: skip
_SCALING = (
    *("weak_speedup", "weak_efficiency", *INTERVAL.of("weak_efficiency")),
    *("strong_speedup", "strong_efficiency", *INTERVAL.of("strong_speedup")),
)
_OF_RUNS = tuple(column.name for column in COLUMNS if column.group in ("time", "checks"))
_NO_BATCH = "the script's batch is not known (--batch-size states it)"
_PREDICTED = tuple(name for name in NAMES if name.startswith("predict"))


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
    row, cell = RowBuilder(), data.cell
    row.put("", cell=cell.name, strategy=cell.strategy, devices=cell.devices, nodes=data.nodes, status=_status(data))
    if knows_batch(cell):
        row.put("", batch_size=cell.batch_size, global_batch_size=cell.global_batch_size)
    else:
        row.clear(("batch_size", "global_batch_size"), TRACES_ALONE)
    if not data.measured:
        row.clear(tuple(name for name in NAMES if row.values[name] is None), f"not measured: {row.values['status']}")
        return row
    if data.ranks:
        _put_times(row, data, spreads.step)
        _put_scaling(row, data, singles, spreads.step)
        _put_checks(row, data)
        if data.trained_alone:
            row.clear(_SCALING, "each process trained alone")
    else:
        row.clear(_OF_RUNS, TRACES_ALONE)
    _put_breakdown(row, data)
    put_ledger(row, data, singles.get(cell.batch_size) if knows_batch(cell) else None, spreads)
    put_device_use(row, data, peaks, flops)
    _put_bandwidth(row, data)
    alone = cell.devices == 1
    if alone or not data.communication_known:
        row.clear(_COMMUNICATION, "one device: nothing to communicate" if alone else LOST)
    put_estimates(row, data, singles, sources, spreads)
    if alone or not data.communication_known:
        row.clear(BANDWIDTH_COLUMNS, "one device: nothing to communicate" if alone else LOST)
    else:
        put_bandwidths(row, data, sources)
    if not alone and not data.communication_known:
        row.clear((*_PREDICTED, "idle_device_mean_us"), LOST)
    for column in NAMES:
        if row.values[column] is None:
            row.reasons.setdefault(column, "not measured")
    return row


def _status(data: CellData) -> str:
    if data.skip_reason is not None and not data.measured:
        return f"skipped: {data.skip_reason}"
    failed = [result for result in data.results if result.status != "ok"]
    if data.measured:
        return "ok" if not failed else f"ok, {counted(len(failed), 'repeat')} {failed[0].status}"
    if failed:
        return failed[-1].status
    return "not run"


def _put_times(row: RowBuilder, data: CellData, spread: Spread) -> None:
    step = median_estimate(data.step_samples(), spread)
    without = [total - wait for total, wait in zip(data.step_samples(), data.step_samples("data_wait_us"), strict=True)]
    row.put(NO_INTERVAL, step_us=step.value, step_count=step.count, step_without_wait_us=pooled_median(without))
    row.put_interval(NO_INTERVAL, "step_us", step)
    known = data.knows_samples
    _put_rates(row, data, step, known)
    blocks = throughput(data)
    row.put("no block was timed", block_count=blocks.count)
    row.put(
        "no block was timed" if known else _NO_BATCH,
        block_samples_per_s=blocks.value if known else None,
        block_samples_per_s_min=blocks.smallest if known else None,
        block_samples_per_s_max=blocks.largest if known else None,
    )


def _put_rates(row: RowBuilder, data: CellData, step: Estimate, known: bool) -> None:
    """Samples, tokens and steps per second, all of the median step; its interval turned over is theirs."""
    size = float(data.cell.global_batch_size) if known else None
    tokens = data.ranks[0][1].tokens_per_sample
    rate = _per_second(size, step.value)
    row.put(
        _NO_BATCH, samples_per_s=rate, samples_per_s_without_wait=_per_second(size, row.number("step_without_wait_us"))
    )
    ends = Interval(1e6 / step.high, 1e6 / step.low) if step.low and step.high else None
    scaled = Interval(size * ends.low, size * ends.high) if size is not None and ends is not None else None
    row.put_interval(NO_INTERVAL if known else _NO_BATCH, "samples_per_s", scaled)
    row.put("samples/s is given instead", steps_per_s=None if known else _per_second(1.0, step.value))
    row.put(
        "samples are not tokens" if tokens is None else _NO_BATCH,
        tokens_per_s=rate * tokens if tokens is not None and rate is not None else None,
    )


def _per_second(count: float | None, time_us: float | None) -> float | None:
    return count * 1e6 / time_us if count is not None and time_us else None


def throughput(data: CellData) -> Range:
    """Samples per second of the timed blocks: all processes' samples over the slowest process's time."""
    rates = []
    for repeat in dict.fromkeys(repeat for repeat, _ in data.ranks):
        per_rank = [rank.blocks for number, rank in data.ranks if number == repeat]
        for blocks in zip(*per_rank, strict=False):
            slowest = max(block.duration_s for block in blocks)
            if slowest > 0:
                rates.append(sum(block.samples for block in blocks) / slowest)
    return mean_range(rates)


def epoch_seconds(data: CellData) -> tuple[float | None, bool]:
    """Seconds per epoch and whether whole epochs were timed; else the step's median times the steps of an epoch."""
    epochs = []
    for repeat in dict.fromkeys(repeat for repeat, _ in data.ranks):
        blocks = zip(*(rank.blocks for number, rank in data.ranks if number == repeat), strict=False)
        epochs += [max(block.duration_s for block in ranks) for ranks in blocks if ranks[0].epoch is not None]
    if epochs:
        return sum(epochs) / len(epochs), True
    samples = data.step_samples()
    if not samples or not data.ranks:
        return None, False
    median_us = float(pd.concat([pd.Series(repeat) for repeat in samples]).median())
    steps = data.ranks[0][1].steps_per_epoch
    return None if steps is None else median_us * steps / 1e6, False


def _put_scaling(row: RowBuilder, data: CellData, singles: Mapping[int, CellData], spread: Spread) -> None:
    """Speedups and efficiencies with their intervals; on one device they are 1 by definition."""
    cell, step = data.cell, row.number("step_us")
    same, total = single_step_us(singles, cell.batch_size), single_step_us(singles, cell.global_batch_size)
    weak = same / step if same is not None and step else None
    strong = total / step if total is not None and step else None
    weak_range, strong_range = (
        _speedup_range(data, singles, cell.batch_size, spread),
        _speedup_range(data, singles, cell.global_batch_size, spread),
    )
    few = "one device: 1 by definition" if cell.traits.baseline else NO_INTERVAL
    row.put(NO_SAME_BATCH, weak_speedup=weak * cell.devices if weak is not None else None, weak_efficiency=weak)
    row.put_interval(NO_SAME_BATCH if same is None else few, "weak_efficiency", weak_range)
    row.put(
        NO_GLOBAL_BATCH, strong_speedup=strong, strong_efficiency=strong / cell.devices if strong is not None else None
    )
    row.put_interval(NO_GLOBAL_BATCH if total is None else few, "strong_speedup", strong_range)
    row.put("the length of an epoch is not known", steps_per_epoch=data.ranks[0][1].steps_per_epoch)


def _speedup_range(data: CellData, singles: Mapping[int, CellData], batch_size: int, spread: Spread) -> Estimate:
    """t_1 at a batch over this cell's step, with its interval; unknown for a single device itself."""
    single = singles.get(batch_size)
    if single is None or data.cell.traits.baseline:
        return UNKNOWN
    return ratio_estimate(single.step_samples(), data.step_samples(), spread)


def _put_breakdown(row: RowBuilder, data: CellData) -> None:
    every, windows = data.whole_windows, data.critical_windows
    if windows.empty:
        row.clear((*_MEANS, *_DEVICE_MEANS, *_PHASES, "critical_device"), "no whole traced step")
        return
    means = {column: _mean(windows[column]) for column in (*_MEANS, *_PHASES, "step_us", *_MATCHED)}
    row.put("", traced_step_count=len(windows))
    several = len(windows) < len(every)
    row.put(
        "each process has one device",
        critical_device=int(windows["device"].mode().iloc[0]) if several else None,
        **{name: _mean(every[name.replace("_device_mean", "")]) if several else None for name in _DEVICE_MEANS},
    )
    row.put("a CPU trace does not show it", **{column: means[column] for column in _MEANS})
    row.put("the traces hold no range of this phase", **{column: means[column] for column in _PHASES})
    no_match = (
        "host copies within one process: no collective to match"
        if data.cell.traits.threaded
        else "needs matched collectives of every rank"
    )
    row.put(no_match, **{column: means[column] for column in _MATCHED})
    for name in ("communication", "exposed"):
        per_rank = every.groupby(["rank", "device"], dropna=False)[f"{name}_us"].mean().dropna()
        row.put_rank_range("not measured", f"{name}_us", mean_range([float(value) for value in per_rank]))
        value = means[f"{name}_us"]
        row.put(
            "not measured",
            **{f"{name}_share": value / means["step_us"] if value is not None and means["step_us"] else None},
        )


def _mean(column: pd.Series) -> float | None:
    known = column.dropna()
    return float(known.mean()) if len(known) else None


def _put_bandwidth(row: RowBuilder, data: CellData) -> None:
    windows, table = data.whole_windows, data.collectives
    if data.cell.traits.peer_copies and table.empty and len(windows):
        _put_copies(row, data, windows)
        return
    if windows.empty or table.empty:
        row.clear(
            ("bytes_per_step", "collectives_per_step", "algbw_gb_per_s", "busbw_gb_per_s", "queue_us"),
            "the trace shows no collective" + (" (dp-host copies within one process)" if not table.size else ""),
        )
        return
    keys = ["repeat", "rank", "device", "step"]
    own = table.merge(windows[keys], on=keys)
    sizes_known = bool(len(own)) and bool(own["bytes"].notna().all())
    row.put(
        "the trace gives no sizes for some collectives",
        bytes_per_step=float(own["bytes"].sum()) / len(windows) if sizes_known else None,
        collectives_per_step=len(own) / len(windows),
    )
    queued = float(own["queue_us"].sum(min_count=1)) if "queue_us" in own and own["queue_us"].notna().any() else None
    row.put("only gloo's collectives queue", queue_us=queued / len(windows) if queued is not None else None)
    reduced = own[(own["kind"] == "all_reduce") & own["transfer_us"].notna() & own["bytes"].notna()]
    transfer_us = _transfer_union_us(reduced)
    algbw = float(reduced["bytes"].sum()) / transfer_us / 1e3 if transfer_us > 0 else None
    ranks = reduced["group_size"].fillna(data.cell.devices)
    factors = pd.Series([bus_factor("all_reduce", int(count)) for count in ranks], index=reduced.index, dtype=float)
    sent = float((reduced["bytes"].astype(float) * factors).sum(skipna=False))
    row.put(
        "no matched all-reduce with a size",
        algbw_gb_per_s=algbw,
        busbw_gb_per_s=sent / transfer_us / 1e3 if transfer_us > 0 else None,
    )


def _transfer_union_us(reduced: pd.DataFrame) -> float:
    """Time in which a rank's collectives transferred, added up over ranks and steps; of several at once the link has one rate.

    A rank's wait comes first: a transfer is the end of its collective.
    """
    ends = (reduced["start_us"] + reduced["duration_us"]).to_numpy(dtype=float)
    starts = ends - reduced["transfer_us"].to_numpy(dtype=float)
    steps = reduced.groupby(["repeat", "rank", "device", "step"], dropna=False).ngroup().to_numpy()
    return float(sum(length(union(starts[steps == step], ends[steps == step])) for step in np.unique(steps)))


def _put_copies(row: RowBuilder, data: CellData, windows: pd.DataFrame) -> None:
    """DataParallel without NCCL: bytes that a device sends to others, the mean over devices and steps."""
    row.clear(
        ("collectives_per_step", "algbw_gb_per_s", "busbw_gb_per_s", "queue_us"),
        "moved by copies between devices: no collective",
    )
    own = data.copies.merge(windows[["repeat", "device", "step"]]) if len(data.copies) else data.copies
    row.put(
        "the trace shows neither a collective nor a copy between devices",
        bytes_per_step=float(own["bytes"].sum()) / len(windows) if len(own) else None,
    )


def _put_checks(row: RowBuilder, data: CellData) -> None:
    timed = pooled_median(data.step_samples())
    whole = slice(1, None) if data.on_device else slice(None, -1)  # without the one step more that is traced
    traced = pooled_median([samples[whole] for samples in data.step_samples(measuring_pass="traced")])
    row.put("no traced step", tracer_cost=traced / timed if traced and timed else None)
    ratios = [check.span_ratio for check in data.counter_checks if check.span_ratio is not None]
    row.put(
        "only DDP on several devices has a pass with its counters",
        counter_span_ratio=float(np.median(ratios)) if ratios else None,
        counter_buckets_equal=all(check.buckets_equal for check in data.counter_checks) if ratios else None,
    )
    held = [rank.state_bytes for _, rank in data.ranks if rank.state_bytes is not None]
    row.put("not recorded by older versions of dpscope or for a user's script", state_bytes=max(held, default=None))
    compiled = [rank.compilation for _, rank in data.ranks if rank.compilation is not None]
    row.put(
        "not a compiled cell",
        compile_us=max((one.seconds * 1e6 for one in compiled), default=None),
        compiled_parts=max((one.parts for one in compiled), default=None),
    )
    peaks = [memory for _, rank in data.ranks for memory in rank.memory]
    row.put(
        "the CPU's allocator keeps no peak",
        peak_allocated_bytes=max((peak.allocated_bytes for peak in peaks), default=None),
        peak_reserved_bytes=max((peak.reserved_bytes for peak in peaks), default=None),
    )
