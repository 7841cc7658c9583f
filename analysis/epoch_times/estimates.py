"""What epoch times alone support: named estimates of scaling and communication, sound or not, and
their bounds.

Words: b is the batch per device, G = N b the global batch; t is a step time, T an epoch time over a
fixed data set, so that an epoch on N devices has 1/N of the steps that one device needs at the same
b. Where an epoch on N devices holds more samples, as with equal steps at the same b, T_1 stands for
the time that one device needs for as many.

Speedup: strong scaling (fixed G) has T_1(G)/T_N(G). Weak scaling (fixed b) has the scaled speedup N
t_1(b)/t_N(b) (Gustafson, CACM 31(5), 1988): T_1(b)/T_N on epoch times, as the epoch on N devices
has 1/N of the steps; multiplying by N again would count the devices twice. Efficiency is the
speedup over N. `same_local_batch`, T_N - T_1(b)/N (per step t_N(b) - t_1(b)), is sound as added
wall time, not as total communication.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.epoch_times.epoch_time import Bounded, EpochTime, Setting
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
_LEVELS = {
    "communication_seconds": (0.0, "the sign"),
    "speedup": (1.0, "faster or slower than one device"),
}
"""By quantity: the value that separates faster from slower, and what is uncertain on both sides of
it.
"""
UNKNOWN_BATCH = "batch_size_is is not given: the batch per device is unknown"
NO_SINGLE = "no row of one device"
MAY_BE_EQUAL_STEPS = 1.1
"""T_1/T_N, at the same batch per device, below which an epoch of N devices may have the steps of
one device's.

A step on N devices takes at least as long as on one device, so that with equal steps the ratio is 1
at most, and noise.
"""


class EpochEstimate(NamedTuple):
    """One derived value of one multi-device epoch time. `value`, `low` and `high` are None where
    unknown.

    `low` and `high` are the bounds of the clock's resolution. `sound`: the value means what its
    method's name says; `reason` states its limits, or why it is unsound or unknown.
    """

    study: str | None
    run: str | None
    strategy: str
    batch_size: int | None
    devices: int
    quantity: str
    method: str
    value: float | None
    low: float | None
    high: float | None
    unit: str
    sound: bool
    reason: str
    nodes: int | None = None

    @property
    def setting(self) -> Setting:
        """That of its row."""
        return (self.study, self.run, self.strategy, self.batch_size, self.devices, self.nodes)

    @property
    def uncertain(self) -> bool:
        """Whether the bounds include the level of _LEVELS; False for an exact value."""
        level, high = (
            _LEVELS.get(self.quantity, (math.nan,))[0],
            math.inf if self.high is None else self.high,
        )
        return self.low is not None and self.low < high and self.low <= level <= high


class _Pair(NamedTuple):
    """An epoch on N devices and one device's time for its samples; `problem` makes every comparison
    of them unsound.
    """

    t_n: Bounded
    t_1: Bounded
    note: str
    problem: str = ""


def epoch_estimates(rows: Sequence[EpochTime]) -> list[EpochEstimate]:
    """Every estimate of every multi-device row of a table, in its order."""
    return [estimate for row in rows if row.devices > 1 for estimate in _row_estimates(row, rows)]


def _row_estimates(row: EpochTime, rows: Sequence[EpochTime]) -> list[EpochEstimate]:
    local = _at_local_batch(row, rows)
    pairs = {
        "strong": (
            _compared(row, row.global_batch, rows),
            "same global batch, so a smaller batch per device on more devices",
        ),
        "weak": (
            local,
            "same batch per device; on epoch times the ratio is already the scaled speedup",
        ),
    }
    if row.batch_size_is is None:
        unknown = "strong or weak is unknown: batch_size_is is not given"
        pairs["same_batch_size"] = (_compared(row, row.batch_size, rows), unknown)
    found = []
    for method, (pair, meaning) in pairs.items():
        speedup = _derived(
            row, ("speedup", method), pair, meaning, lambda t_n, t_1: t_1 / t_n if t_n else math.inf
        )
        efficiency = [None if bound is None else bound / row.devices for bound in speedup[7:10]]
        found.append(speedup)
        found.append(
            speedup._replace(
                quantity="efficiency", value=efficiency[0], low=efficiency[1], high=efficiency[2]
            )
        )
    added = _derived(
        row,
        ("communication_seconds", "same_local_batch"),
        local,
        "added wall time at the same batch per device; overlap hides communication from it, waiting and contention add",
        lambda t_n, t_1: t_n - t_1 * (1 / row.devices),
    )
    compute = _derived(
        row,
        ("compute_seconds", "same_local_batch"),
        local,
        "one device's time for its share: compute, loading, transfers and evaluation",
        lambda t_n, t_1: t_1 * (1 / row.devices),
    )
    return [*found, added, compute, _bandwidth(row, added)]


def _at_local_batch(row: EpochTime, rows: Sequence[EpochTime]) -> _Pair | str:
    """With one device's time at the same batch per device."""
    pair = (
        _pair(row, None, rows) if row.batch_size is None else _compared(row, row.local_batch, rows)
    )
    if isinstance(pair, str):
        return pair
    total = row.global_batch
    if total is not None and row.samples_per_epoch is not None and total > row.samples_per_epoch:
        samples = f"the data set of {row.samples_per_epoch}"
        too_large = (
            f"the global batch of {total} exceeds {samples}: no device trained on its whole batch"
        )
        return pair._replace(problem=too_large)
    return pair


def _compared(row: EpochTime, batch_size: int | None, rows: Sequence[EpochTime]) -> _Pair | str:
    """A row and its single device's time at that batch; else the reason why there is none."""
    if batch_size is not None:
        return _pair(row, batch_size, rows)
    if row.batch_size_is is None:
        return UNKNOWN_BATCH
    if row.batch_size is None:
        return "the table has no column batch_per_rank: the global batch is unknown"
    return f"batch {row.batch_size} does not divide evenly by {counted(row.devices, 'device')}"


def _pair(row: EpochTime, batch_size: int | None, rows: Sequence[EpochTime]) -> _Pair | str:
    """The same; without a batch, at the one that all rows have."""
    if (t_n := row.seconds) is None:
        return "no epoch time: out of memory"
    single = _single(row, batch_size, rows)
    if isinstance(single, str):
        return single
    where = "" if single.run == row.run else f" of run {single.run}"
    if (t_1 := single.seconds) is None:
        return f"the single device ran out of memory at {_batch(batch_size)}{where}"
    samples, ratio = row.samples_over(single), t_1.value / t_n.value
    if samples is None and row.batch_size_is == "per_device" and ratio < MAY_BE_EQUAL_STEPS:
        return (
            f"a speedup of {ratio:.2f} if an epoch has the same samples on {counted(row.devices, 'device')} as on one, but of "
            f"{row.devices * ratio:.2f} if it has the same steps: give samples_per_epoch or steps_per_epoch"
        )
    note = f"T_1 at {_batch(batch_size)}{where}"
    if samples not in (None, 1.0):
        note += f", times {samples:.3g} as the epoch has {samples:.3g} times its samples"
    return _Pair(t_n, Bounded(*((samples or 1.0) * time_s for time_s in t_1)), note)


def _batch(batch_size: int | None) -> str:
    return "the same batch" if batch_size is None else f"batch {batch_size}"


def _single(row: EpochTime, batch_size: int | None, rows: Sequence[EpochTime]) -> EpochTime | str:
    """The one-device row to compare with: of the same study, model and data set, of the row's run
    where it has any.

    Its strategy is `single`, or else the row's on one device.
    """
    alike = [
        single
        for single in rows
        if single.devices == 1
        and (single.study, single.model, single.dataset) == (row.study, row.model, row.dataset)
    ]
    if not alike:
        return NO_SINGLE
    alike = [peer for peer in alike if peer.run == row.run] or alike
    alike = [peer for peer in alike if peer.batch_size == batch_size]
    found = [peer for peer in alike if traits_of(peer.strategy).baseline]
    found = found or [peer for peer in alike if peer.strategy == row.strategy]
    if len(found) == 1:
        return found[0]
    if found:
        return f"{len(found)} different single-device times at {_batch(batch_size)}: name one run for each"
    return no_single_time(batch_size)


def no_single_time(batch_size: int | None) -> str:
    """The reason of estimates for which one device was not timed at their batch per device."""
    if batch_size is None:
        return "no single-device time"
    return f"no single-device time at {counted(batch_size, 'sample')} per device"


def _derived(
    row: EpochTime,
    named: tuple[str, str],
    pair: _Pair | str,
    meaning: str,
    formula: Callable[[float, float], float],
) -> EpochEstimate:
    """`formula` of T_N and T_1, under a quantity and method.

    The formulas are monotonic in both times, so that the extremes are at the ends of their
    intervals (Moore, Interval Analysis, 1966): strict bounds, not standard errors.
    """
    if isinstance(pair, str):
        return _estimate(row, named, None, pair, False)
    t_n, t_1 = pair.t_n, pair.t_1
    ends = [formula(ours, theirs) for ours in t_n[1:] for theirs in t_1[1:]]
    value = Bounded(formula(t_n.value, t_1.value), min(ends), max(ends))
    estimate = _estimate(
        row, named, value, f"{pair.note}; {pair.problem or meaning}", not pair.problem
    )
    if estimate.uncertain:
        reason = (
            f"{_LEVELS[named[0]][1]} is not certain at this clock resolution; {estimate.reason}"
        )
        estimate = estimate._replace(reason=reason)
    if named[0] == "communication_seconds" and estimate.sound and value.high < 0:
        reason = "negative: N devices took less than 1/N of the time, so something other than communication changed"
        estimate = estimate._replace(sound=False, reason=reason)
    return estimate


def moved_bytes_per_step(row: EpochTime) -> float | None:
    """Bytes that one device must move in a step, with 4-byte gradients; None if unknown.

    DDP: ring all-reduce of the gradients, 2(N-1)/N S (Patarasuk and Yuan, 2009; nccl-tests,
    doc/PERFORMANCE.md). DP (torch.nn.parallel.data_parallel): device 0 broadcasts the parameters S
    and reduces the gradients S, so 2 S over its link for any N; buffers, inputs and outputs are not
    included.
    """
    if row.parameters is None:
        return None
    model_bytes = BYTES_PER_PARAMETER * row.parameters
    if traits_of(row.strategy).reducer:
        return (bus_factor("all_reduce", row.devices) or 0.0) * model_bytes
    return 2.0 * model_bytes if traits_of(row.strategy).peer_copies else None


def _bandwidth(row: EpochTime, added: EpochEstimate) -> EpochEstimate:
    """Bytes that a device must move in an epoch over the added wall time; never negative or
    infinite.
    """
    steps, step_bytes = row.steps, moved_bytes_per_step(row)
    rate = None
    if added.value is None or added.low is None or added.high is None or not added.sound:
        reason = added.reason
    elif added.low <= 0:
        reason = "the added time may be zero or less at this clock resolution, so its quotient is unbounded"
    elif steps is None:
        reason = (
            "samples_per_epoch or batch_size_is is not given: the steps of an epoch are unknown"
        )
    elif step_bytes is None:
        reason = "parameters are not given, or it is unknown what this strategy moves"
    else:
        epoch_gigabytes = steps * step_bytes / 1e9
        rate = Bounded(
            *(epoch_gigabytes / seconds for seconds in (added.value, added.high, added.low))
        )
        reason = f"{counted(steps, 'step')} of {step_bytes / 1e6:.4g} MB per added second of wall time; not a link's rate"
    return _estimate(
        row, ("effective_bandwidth", "same_local_batch"), rate, reason, rate is not None
    )


def _estimate(
    row: EpochTime, named: tuple[str, str], value: Bounded | None, reason: str, sound: bool
) -> EpochEstimate:
    middle, low, high = value if value is not None else (None, None, None)
    high = None if high is None or math.isinf(high) else high
    study, run, strategy, batch_size, devices, nodes = row.setting
    setting = (study, run, strategy, batch_size, devices)
    return EpochEstimate(*setting, *named, middle, low, high, UNITS[named[0]], sound, reason, nodes)
