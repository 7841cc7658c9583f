"""What epoch times alone support: named estimates of scaling and communication, sound or not, and their bounds.

Words: b is the batch per device, G = N b the global batch; t is a step time, T an epoch time over a fixed data
set, so that an epoch on N devices has 1/N of the steps that one device needs at the same b. Where an epoch on N devices holds
more samples, as with equal steps at the same b, T_1 stands for the time that one device needs for as many.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.epoch_times.baselines import Baselines
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
_LEVELS = {"communication_seconds": (0.0, "the sign"), "speedup": (1.0, "faster or slower than one device")}
"""By quantity: the value that separates faster from slower, and what is uncertain on both sides of it."""


class EpochEstimate(NamedTuple):
    """One derived value of one multi-device epoch time. `value`, `low` and `high` are None where unknown.

    `low` and `high` are the bounds of the clock's resolution. `sound`: the value means what its method's name says; `reason`
    states its limits, or why it is unsound or unknown.
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
    nodes: int | None = None

    @property
    def setting(self) -> Setting:
        """That of its row."""
        return (self.study, self.run, self.strategy, self.batch_size, self.devices, self.nodes)

    @property
    def uncertain(self) -> bool:
        """Whether the bounds include the level of _LEVELS; False for an exact value."""
        level, high = _LEVELS.get(self.quantity, (math.nan,))[0], math.inf if self.high is None else self.high
        return self.low is not None and self.low < high and self.low <= level <= high


def moved_bytes_per_step(row: EpochTime) -> float | None:
    """Bytes that one device must move in a step, with 4-byte gradients; None if unknown.

    DDP: ring all-reduce of the gradients, 2(N-1)/N S (Patarasuk and Yuan, 2009; nccl-tests, doc/PERFORMANCE.md).
    DP (torch.nn.parallel.data_parallel): device 0 broadcasts the parameters S and reduces the gradients S, so 2 S over its link
    for any N; buffers, inputs and outputs are not included.
    """
    if row.parameters is None:
        return None
    model_bytes = BYTES_PER_PARAMETER * row.parameters
    if traits_of(row.strategy).reducer:
        return (bus_factor("all_reduce", row.devices) or 0.0) * model_bytes
    return 2.0 * model_bytes if traits_of(row.strategy).peer_copies else None


_Formula = Callable[[float, float, int], float]


def _ratio(t_n: float, t_1: float, n: int) -> float:
    return t_1 / t_n if t_n else math.inf


def _added(t_n: float, t_1: float, n: int) -> float:
    return t_n - t_1 * (1 / n)


def _share(t_n: float, t_1: float, n: int) -> float:
    return t_1 * (1 / n)


_DERIVED: tuple[tuple[str, str, _Formula, str], ...] = (
    ("speedup", "strong", _ratio, "same global batch, so a smaller batch per device on more devices"),
    ("speedup", "weak", _ratio, "same batch per device; on epoch times the ratio is already the scaled speedup"),
    ("speedup", "same_batch_size", _ratio, "strong or weak is unknown: batch_size_is is not given"),
    (
        "communication_seconds", "same_local_batch", _added,
        "added wall time at the same batch per device; overlap hides communication from it, waiting and contention add",
    ),
    ("communication_seconds", "ideal_split", _added, "errs by the fixed cost of a step on one device"),
    (
        "communication_seconds", "same_total", lambda t_n, t_1, n: t_n - t_1,
        "the work was divided by {}, so it goes negative",
    ),
    (
        "compute_seconds", "same_local_batch", _share,
        "one device's time for its share: compute, loading, transfers and evaluation",
    ),
    ("compute_seconds", "ideal_split", _share, "not a device's time at its own, smaller batch"),
)  # fmt: skip
"""Quantity, method, formula of T_N, T_1 and N, and meaning.

Speedup: strong scaling (fixed G) has T_1(G)/T_N(G). Weak scaling (fixed b) has the scaled speedup N t_1(b)/t_N(b) (Gustafson,
CACM 31(5), 1988): T_1(b)/T_N on epoch times, as the epoch on N devices has 1/N of the steps; multiplying by N again would count
the devices twice. Efficiency is the speedup over N.
`same_local_batch`, T_N - T_1(b)/N (per step t_N(b) - t_1(b)), is sound as added wall time, not as total communication.
`ideal_split`, T_N(G/N) - T_1(G)/N, uses the single device's larger batch, so it errs by the fixed part of t_1.
`same_total`, T_N(G/N) - T_1(G), does not divide the work, so it goes negative.
"""
MAY_BE_EQUAL_STEPS = 1.1
"""T_1/T_N, at the same batch per device, below which an epoch of N devices may have the steps of one device's.

A step on N devices takes at least as long as on one device, so that with equal steps the ratio is 1 at most, and noise.
"""
_UNSOUND = ("ideal_split", "same_total")
_AT_LOCAL_BATCH = ("weak", "same_local_batch")


def epoch_estimates(rows: Sequence[EpochTime]) -> list[EpochEstimate]:
    """Every estimate of every multi-device row of a table, in its order."""
    baselines = Baselines(rows)
    return [estimate for row in rows if row.devices > 1 for estimate in _row_estimates(row, baselines)]


def _row_estimates(row: EpochTime, baselines: Baselines) -> list[EpochEstimate]:
    n, total, too_large = row.devices, row.global_batch, None
    if total is not None and row.samples_per_epoch is not None and total > row.samples_per_epoch:
        samples = f"the data set of {row.samples_per_epoch}"
        too_large = f"the global batch of {total} exceeds {samples}: no device trained on its whole batch"
    found: list[EpochEstimate] = []
    for quantity, method, formula, meaning in _DERIVED:
        batch = row.local_batch if method in _AT_LOCAL_BATCH else total
        if method == "same_batch_size":
            if row.batch_size_is is not None:
                continue
            batch = row.batch_size
        if batch is not None:
            single, note = baselines.find(row, batch, sweep_first=quantity != "speedup")
        elif row.batch_size_is is None:
            single, note = None, "batch_size_is is not given: the batch per device is unknown"
        else:
            single, note = None, f"batch {row.batch_size} does not divide evenly by {counted(n, 'device')}"
        meaning = meaning.format(n)
        problem = meaning if method in _UNSOUND else too_large if method in _AT_LOCAL_BATCH else None
        estimate = _derived(row, quantity, method, single, formula, note, problem, meaning)
        found.append(estimate)
        if quantity == "speedup":
            scaled = [None if one is None else one / n for one in estimate[7:10]]
            found.append(estimate._replace(quantity="efficiency", value=scaled[0], low=scaled[1], high=scaled[2]))
    added = next(one for one in found if (one.quantity, one.method) == ("communication_seconds", "same_local_batch"))
    return [*found, _bandwidth(row, added)]


def length_unknown(row: EpochTime, single: EpochTime) -> str:
    """Why nothing follows from T_1/T_N at the same batch per device, as of equal steps or of equal samples; empty if it does."""
    if row.batch_size_is != "per_device" or row.devices == 1 or row.samples_over(single) is not None:
        return ""
    if row.epoch_seconds is None or single.epoch_seconds is None:
        return ""
    ratio = single.epoch_seconds / row.epoch_seconds
    if ratio >= MAY_BE_EQUAL_STEPS:
        return ""
    return (
        f"a speedup of {ratio:.2f} if an epoch has the same samples on {counted(row.devices, 'device')} as on one, but of "
        f"{row.devices * ratio:.2f} if it has the same steps: give samples_per_epoch or steps_per_epoch"
    )


def _derived(
    row: EpochTime,
    quantity: str,
    method: str,
    single: EpochTime | None,
    formula: _Formula,
    note: str,
    problem: str | None,
    meaning: str,
) -> EpochEstimate:
    """`formula` of T_N and T_1, of the row `single`; `problem` makes it unsound.

    The formulas are monotonic in both times, so that the extremes are at the ends of their intervals (Moore, Interval Analysis,
    1966): strict bounds, not standard errors.
    """
    t_n, t_1 = row.seconds, single.seconds if single is not None else None
    if t_n is None or t_1 is None or single is None:
        reason = "no epoch time: out of memory" if t_n is None else note
        return _estimate(row, quantity, method, None, reason, False)
    if method in _AT_LOCAL_BATCH and (unknown := length_unknown(row, single)):
        return _estimate(row, quantity, method, None, unknown, False)
    samples = row.samples_over(single) or 1.0
    if samples != 1.0:
        note += f", times {samples:.3g} as the epoch has {samples:.3g} times its samples"
    ends = [formula(ours, samples * theirs, row.devices) for ours in t_n[1:] for theirs in t_1[1:]]
    value = Bounded(formula(t_n.value, samples * t_1.value, row.devices), min(ends), max(ends))
    estimate = _estimate(row, quantity, method, value, f"{note}; {problem or meaning}", problem is None)
    if estimate.uncertain:
        reason = f"{_LEVELS[quantity][1]} is not certain at this clock resolution; {estimate.reason}"
        estimate = estimate._replace(reason=reason)
    if estimate.sound and quantity == "communication_seconds" and value.high < 0:
        reason = "negative: N devices took less than 1/N of the time, so something other than communication changed"
        return estimate._replace(sound=False, reason=reason)
    return estimate


def _bandwidth(row: EpochTime, added: EpochEstimate) -> EpochEstimate:
    """Bytes that a device must move in an epoch over the added wall time; never negative or infinite."""
    steps, step_bytes = row.steps, moved_bytes_per_step(row)
    rate = None
    if added.value is None or added.low is None or added.high is None or not added.sound:
        reason = added.reason
    elif added.low <= 0:
        reason = "the added time may be zero or less at this clock resolution, so its quotient is unbounded"
    elif steps is None:
        reason = "samples_per_epoch or batch_size_is is not given: the steps of an epoch are unknown"
    elif step_bytes is None:
        reason = "parameters are not given, or it is unknown what this strategy moves"
    else:
        epoch_gigabytes = steps * step_bytes / 1e9
        rate = Bounded(*(epoch_gigabytes / seconds for seconds in (added.value, added.high, added.low)))
        reason = (
            f"{counted(steps, 'step')} of {step_bytes / 1e6:.4g} MB per added second of wall time; not a link's rate"
        )
    return _estimate(row, "effective_bandwidth", "same_local_batch", rate, reason, rate is not None)


def _estimate(
    row: EpochTime, quantity: str, method: str, value: Bounded | None, reason: str, sound: bool
) -> EpochEstimate:
    middle, low, high = value if value is not None else (None, None, None)
    high = None if high is None or math.isinf(high) else high
    study, run, strategy, batch_size, devices, nodes = row.setting
    setting = (study, run, strategy, batch_size, devices)
    return EpochEstimate(*setting, quantity, method, middle, low, high, UNITS[quantity], sound, reason, nodes)
