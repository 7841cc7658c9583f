"""What epoch times alone tell about scaling and communication: each estimate by its name, sound or not.

Words: b is the batch per device, G = N b the global batch; t is a step time, T an epoch time over a fixed data
set, so that an epoch on N devices has 1/N of the steps that one device needs at the same b.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.epoch_times.baselines import (
    Baseline,
    Baselines,
    epoch_bounds,
    global_batch,
    local_batch,
    steps_in_epoch,
)
from dpscope.analysis.epoch_times.bounded_values import Bounded
from dpscope.analysis.epoch_times.table import EpochTime
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of

UNITS = {
    "speedup": "1",
    "efficiency": "1",
    "communication_seconds": "s",
    "compute_seconds": "s",
    "effective_bandwidth": "GB/s",
}
BYTES_PER_PARAMETER = 4
ADDED_WALL_TIME = (
    "added wall time at the same batch per device; overlap hides communication from it, waiting and contention add"
)


class EpochEstimate(NamedTuple):
    """One derived value of one multi-device epoch time. `value`, `low` and `high` are None where unknown.

    `low` and `high` are what the clock's resolution allows. `sound` says that the value means what its method
    says; `reason` holds its limits, or why it is unsound or unknown.
    """

    study: str | None
    run: str | None
    strategy: str
    batch_size: int
    devices: int
    quantity: str
    method: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    sound: bool
    reason: str


class Setting(NamedTuple):
    """A multi-device row and the single-device times that answer its questions."""

    row: EpochTime
    seconds: Bounded | None
    b: int | None
    ratio_local: Baseline  # T_1(b), for speedups
    ratio_global: Baseline  # T_1(G), for speedups
    ratio_same: Baseline  # T_1 at the number in batch_size, whatever it means
    cost_local: Baseline  # T_1(b), for subtractions
    cost_global: Baseline  # T_1(G), for subtractions


def estimates(rows: Sequence[EpochTime]) -> list[EpochEstimate]:
    """Every estimate of every multi-device row of a table, in its order."""
    return [estimate for setting in settings(rows) for estimate in _setting_estimates(setting)]


def settings(rows: Sequence[EpochTime]) -> list[Setting]:
    """The multi-device rows of a table with their baselines."""
    baselines = Baselines(rows)
    return [_setting(row, baselines) for row in rows if row.devices > 1]


def moved_bytes_per_step(row: EpochTime) -> float | None:
    """Bytes one device must move in a step, with 4-byte gradients; None where the table does not tell.

    DDP: ring all-reduce of the gradients, 2(N-1)/N S (Patarasuk and Yuan, 2009; nccl-tests,
    doc/PERFORMANCE.md). DP (torch.nn.parallel.data_parallel): device 0 broadcasts the parameters S and reduces
    the gradients S, 2 S over its link whatever N is; buffers, inputs and outputs come on top and are left out.
    """
    if row.parameters is None:
        return None
    model_bytes = BYTES_PER_PARAMETER * row.parameters
    if traits_of(row.strategy).reducer:
        return (bus_factor("all_reduce", row.devices) or 0.0) * model_bytes
    return 2.0 * model_bytes if traits_of(row.strategy).peer_copies else None


def same_local_batch_seconds(setting: Setting) -> EpochEstimate:
    """Added wall time of an epoch, T_N - T_1(b)/N: sound, where T_1 at the same batch per device is known.

    Per step it is t_N(b) - t_1(b). It is no measure of total communication.
    """
    share = _share(setting.cost_local, setting.row.devices)
    if setting.seconds is None or share is None:
        return _unknown(setting, "communication_seconds", "same_local_batch", setting.cost_local)
    added = setting.seconds.minus(share)
    reason = f"{setting.cost_local.note}; {ADDED_WALL_TIME}"
    problem = _not_the_same_work(setting)
    if problem is None and added.high < 0:
        problem = "negative: N devices took less than 1/N of the time, so something besides communication changed"
    if added.straddles(0):
        reason = f"the sign is not certain at this clock resolution; {reason}"
    return _estimate(setting, "communication_seconds", "same_local_batch", added, problem or reason, problem is None)


def _setting(row: EpochTime, baselines: Baselines) -> Setting:
    b, size = local_batch(row), global_batch(row)

    def find(batch: int | None, sweep_first: bool) -> Baseline:
        if batch is not None:
            return baselines.find(row, batch, sweep_first=sweep_first)
        if row.batch_size_is is None:
            return Baseline(None, "batch_size_is is not given: the batch per device is unknown")
        return Baseline(None, f"batch {row.batch_size} does not divide evenly by {counted(row.devices, 'device')}")

    return Setting(
        row=row,
        seconds=epoch_bounds(row),
        b=b,
        ratio_local=find(b, False),
        ratio_global=find(size, False),
        ratio_same=find(row.batch_size, False),
        cost_local=find(b, True),
        cost_global=find(size, True),
    )


def _setting_estimates(setting: Setting) -> list[EpochEstimate]:
    communication = same_local_batch_seconds(setting)
    return [
        *_ratios(setting),
        communication,
        *_unsound_subtractions(setting),
        *_compute(setting),
        _bandwidth(setting, communication),
    ]


def _ratios(setting: Setting) -> list[EpochEstimate]:
    """Speedup and efficiency under strong and weak scaling, on epoch times.

    Strong (fixed G): T_1(G)/T_N(G), efficiency that over N. Weak (fixed b): the scaled speedup N t_1(b)/t_N(b)
    (Gustafson, CACM 31(5), 1988) is T_1(b)/T_N on epoch times, as the epoch on N devices has 1/N of the steps;
    multiplying by N again would count the devices twice.
    """
    strong = "same global batch, so a smaller batch per device on more devices"
    weak = "same batch per device; on epoch times the ratio is already the scaled speedup"
    found = [
        *_ratio(setting, "strong", setting.ratio_global, strong),
        *_ratio(setting, "weak", setting.ratio_local, weak),
    ]
    if setting.row.batch_size_is is None:
        unknown = "strong or weak is unknown: batch_size_is is not given"
        found += _ratio(setting, "same_batch_size", setting.ratio_same, unknown)
    return found


def _ratio(setting: Setting, method: str, baseline: Baseline, meaning: str) -> list[EpochEstimate]:
    if setting.seconds is None or baseline.seconds is None:
        return [_unknown(setting, quantity, method, baseline) for quantity in ("speedup", "efficiency")]
    speedup = baseline.seconds.per(setting.seconds)
    problem = _not_the_same_work(setting) if method == "weak" else None
    reason = f"{baseline.note}; {problem or meaning}"
    if speedup.straddles(1):
        reason = f"faster or slower than one device is not certain at this clock resolution; {reason}"
    return [
        _estimate(setting, "speedup", method, speedup, reason, problem is None),
        _estimate(setting, "efficiency", method, speedup.times(1 / setting.row.devices), reason, problem is None),
    ]


def _unsound_subtractions(setting: Setting) -> list[EpochEstimate]:
    """The two shortcuts at a fixed global batch, for comparison with what people print.

    `ideal_split`, T_N(G/N) - T_1(G)/N, takes the single device's larger batch for the share's cost: it errs by
    the fixed part of t_1. `same_total`, T_N(G/N) - T_1(G), leaves the divided work in: it goes negative.
    """
    baseline, devices = setting.cost_global, setting.row.devices
    if setting.seconds is None or baseline.seconds is None:
        return [
            _unknown(setting, "communication_seconds", method, baseline) for method in ("ideal_split", "same_total")
        ]
    split = setting.seconds.minus(baseline.seconds.times(1 / devices))
    total = setting.seconds.minus(baseline.seconds)
    return [
        _unsound(setting, "ideal_split", split, f"{baseline.note}; errs by the fixed cost of a step on one device"),
        _unsound(
            setting, "same_total", total, f"{baseline.note}; the work was divided by {devices}, so it goes negative"
        ),
    ]


def _unsound(setting: Setting, method: str, difference: Bounded, reason: str) -> EpochEstimate:
    if difference.straddles(0):
        reason = f"the sign is not certain at this clock resolution; {reason}"
    return _estimate(setting, "communication_seconds", method, difference, reason, False)


def _compute(setting: Setting) -> list[EpochEstimate]:
    """One device's time for a share of 1/N of the data: loading, transfers and evaluation are in it."""
    found = []
    for method, baseline, sound in (
        ("same_local_batch", setting.cost_local, _not_the_same_work(setting) is None),
        ("ideal_split", setting.cost_global, False),
    ):
        share = _share(baseline, setting.row.devices)
        if setting.seconds is None or share is None:
            found.append(_unknown(setting, "compute_seconds", method, baseline))
            continue
        what = "all that one device does for its share" if sound else "not what a device does at its own, smaller batch"
        found.append(_estimate(setting, "compute_seconds", method, share, f"{baseline.note}; {what}", sound))
    return found


def _bandwidth(setting: Setting, communication: EpochEstimate) -> EpochEstimate:
    """Bytes a device must move in an epoch over the added wall time; never negative, never infinite."""
    steps, step_bytes = steps_in_epoch(setting.row), moved_bytes_per_step(setting.row)
    value, low, high = communication.value, communication.low, communication.high
    if value is None or low is None or high is None or not communication.sound:
        problem = communication.reason
    elif low <= 0:
        problem = "the added time may be zero or less at this clock resolution, so its quotient is unbounded"
    elif steps is None:
        problem = "samples_per_epoch or batch_size_is is not given: the steps of an epoch are unknown"
    elif step_bytes is None:
        problem = "parameters are not given, or it is unknown what this strategy moves"
    else:
        epoch_gigabytes = steps * step_bytes / 1e9
        rate = Bounded(epoch_gigabytes / value, epoch_gigabytes / high, epoch_gigabytes / low)
        reason = (
            f"{counted(steps, 'step')} of {step_bytes / 1e6:.4g} MB per added second of wall time; no rate of a link"
        )
        return _estimate(setting, "effective_bandwidth", "same_local_batch", rate, reason, True)
    return _unknown(setting, "effective_bandwidth", "same_local_batch", Baseline(None, problem))


def _share(baseline: Baseline, devices: int) -> Bounded | None:
    return None if baseline.seconds is None else baseline.seconds.times(1 / devices)


def _not_the_same_work(setting: Setting) -> str | None:
    """Why T_1(b) is no baseline although it was measured: a step cannot hold more than the data set."""
    size, samples = global_batch(setting.row), setting.row.samples_per_epoch
    if size is not None and samples is not None and size > samples:
        return f"the global batch of {size} exceeds the data set of {samples}: no device trained on its whole batch"
    return None


def _unknown(setting: Setting, quantity: str, method: str, baseline: Baseline) -> EpochEstimate:
    reason = "no epoch time: out of memory" if setting.seconds is None else baseline.note
    return _estimate(setting, quantity, method, (None, None, None), reason, False)


def _estimate(
    setting: Setting,
    quantity: str,
    method: str,
    value: tuple[float | None, float | None, float | None],
    reason: str,
    sound: bool,
) -> EpochEstimate:
    row = setting.row
    middle, low, high = value
    return EpochEstimate(
        study=row.study,
        run=row.run,
        strategy=row.strategy,
        batch_size=row.batch_size,
        devices=row.devices,
        quantity=quantity,
        method=method,
        value=middle,
        low=low,
        high=None if high is None or math.isinf(high) else high,
        unit=UNITS[quantity],
        sound=sound,
        reason=reason,
    )
