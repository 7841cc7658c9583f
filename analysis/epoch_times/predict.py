"""Times on other device counts, by the plain law that predicts best the rows left out of its fit.

A series is the rows of one study, run, strategy and batch. Words: n devices on k nodes, g of them
on each; t a step time, t_1 that of one device at the same batch; m the steps of an epoch, 1/n of
one device's where the devices share the samples at a fixed batch per device. The laws of a time T
are

- constant step: T = m t
- a + b/n: T = a + b/n, at a fixed global batch Amdahl's law
- ring: T = m (t_1 + c (g-1) + d 2(g-1)/g + e (k-1) + f 2(k-1)/k): compute, then the hops and the transfers of a ring all-reduce
  within a node and between nodes (`bus_factor`); no coefficient is negative, and at a fixed global batch compute is t_1/n

Two counts determine a + b/n and leave no row to judge it by: their band is the error of the
constant step. Bands grow with the root of the distance in devices, from that of the largest counts,
and are at least as wide as public series were off at that distance.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from dpscope.analysis.costs.formulas import bus_factor
from dpscope.analysis.epoch_times.epoch_time import (
    EpochTable,
    EpochTime,
    layout,
    place,
    significant,
)
from dpscope.analysis.stats.left_out import (
    FARTHEST,
    BestLaw,
    Law,
    best_law,
    half_band_beyond,
    too_wide,
)
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA
from dpscope.profiling.records.finding import counted, grouped
from dpscope.profiling.records.strategies import traits_of

MISSED = 0.15  # error on the rows left out from which on no number is given
MEASURED = "measured"  # in place of a law
_MOST_NAMED = 4  # times above the tables
_FEWER_STEPS = 1.2  # ratio of two rows' steps from which on they are not the same


class Predicted(NamedTuple):
    """A time that a law predicts, its band as wide as the error on the rows left out and the
    rounding of the table's times together; or the table's own where it measured these devices,
    `law` MEASURED. `reason` states why a value is missing.
    """

    study: str | None
    run: str | None
    strategy: str
    batch_size: int | None
    devices: int
    nodes: int | None
    value: float | None
    low: float | None
    high: float | None
    unit: str  # s of an epoch, ms of a step
    law: str | None
    error_left_out: float | None  # relative
    rows_left_out: int | None
    measured: tuple[int, ...]  # device counts
    reason: str
    wider: float | None = None  # than the errors of the rows left out the band is by the distance


def predictions(table: EpochTable, layouts: Sequence[tuple[int, int | None]]) -> list[Predicted]:
    """Every series of a table on these devices and nodes, each once; without nodes, on nodes as
    full as the series' fullest.
    """
    timed = [row for row in table.rows if row.epoch_seconds is not None]
    found = []
    for rows in _series(timed):
        predicted = []
        for devices, nodes in _placed(layouts, rows):
            target = rows[0]._replace(devices=devices, nodes=nodes)
            predicted.append(_predicted(table, target, rows))
        if _is_constant_work(rows[0], rows):
            largest = max(rows, key=lambda row: row.devices)
            known = [_predicted(table, largest, rows), *predicted]
            predicted = [_explained(row, known) for row in predicted]
        found += predicted
    return found


def _series(timed: Sequence[EpochTime]) -> list[list[EpochTime]]:
    """The rows of each series, with those of a single device where it has none."""

    def study(row: EpochTime) -> tuple[object, ...]:
        return row.study, row.run, row.batch_size

    baselines: list[EpochTime] = []
    several: list[EpochTime] = []
    for row in timed:
        is_baseline = traits_of(row.strategy).baseline
        rows = baselines if is_baseline else several
        rows.append(row)
    series = grouped(((*study(row), row.strategy, row.batch_size_is), row) for row in several)
    for rows in series.values():
        if all(row.devices > 1 for row in rows):
            first = rows[0]
            rows += [row for row in baselines if study(row) == study(first)]
    return list(series.values())


def _explained(row: Predicted, known: Sequence[Predicted]) -> Predicted:
    """With a word where the time is shorter than on fewer devices, although each device has as
    much to do.
    """
    if row.value is None or row.law == MEASURED:
        return row
    for other in known:
        is_smaller = other.devices < row.devices and (other.nodes or 1) <= (row.nodes or 1)
        longer_by = (other.value or 0.0) - row.value
        if is_smaller and longer_by > 0:
            why = (
                f"shorter than on {other.devices}: the law is fitted to all counts, and need not "
                "pass through each"
            )
            reasons = filter(None, (row.reason, why))
            return row._replace(reason="; ".join(reasons))
    return row


def _placed(
    layouts: Sequence[tuple[int, int | None]], rows: Sequence[EpochTime]
) -> list[tuple[int, int | None]]:
    """Each layout once; without nodes, on nodes as full as the fullest of these rows."""
    fullest = max((_place(row)[0] for row in rows if row.nodes), default=None)
    placed = []
    for devices, nodes in layouts:
        if nodes is None and fullest is not None:
            nodes = -(-devices // fullest)
        placed.append((devices, nodes))
    return [*dict.fromkeys(placed)]


def _predicted(table: EpochTable, target: EpochTime, rows: Sequence[EpochTime]) -> Predicted:
    counts = tuple(sorted({row.devices for row in rows}))
    without = Predicted(
        study=target.study,
        run=target.run,
        strategy=target.strategy,
        batch_size=target.batch_size,
        devices=target.devices,
        nodes=target.nodes,
        value=None,
        low=None,
        high=None,
        unit=_unit(table),
        law=None,
        error_left_out=None,
        rows_left_out=None,
        measured=counts,
        reason="",
    )
    own = _measured_seconds(target, rows)
    scale = 1e3 if table.of_steps else 1.0
    if own is not None:
        return without._replace(value=_rounded(own * scale), law=MEASURED)
    if reason := _not_comparable(target, rows):
        return without._replace(reason=reason)
    best = _best(target, rows)
    if best is None:
        reason = (
            "the rows do not determine a law without those that are left out: measure another count"
        )
        return without._replace(reason=reason)
    error = math.expm1(best.error)
    if best.error > MISSED:
        missed = f"the best misses rows that were left out of its fit by more than {MISSED:.0%}"
        return without._replace(
            error_left_out=_rounded(error),
            rows_left_out=best.rows,
            reason=f"no law fits: {missed}; measure another count",
        )
    wider = _distance(counts, target.devices)
    left_out = best.within * wider
    rounding = _rounding(table, target, rows, best.law)
    half = math.hypot(left_out, rounding)
    times_largest = max(1.0, target.devices / max(counts))
    least = half_band_beyond(times_largest)
    half = max(half, least)
    open_by = too_wide(half)
    if open_by is not None:
        return without._replace(reason=f"{open_by}: measure another count")
    value = best.value * scale
    found = without._replace(
        value=_rounded(value),
        low=_rounded(value * math.exp(-half)),
        high=_rounded(value * math.exp(half)),
        law=best.law,
        error_left_out=_rounded(error),
        wider=_rounded(wider),
        rows_left_out=best.rows,
    )
    if found.low == found.high:
        exact = "the law fits exact times exactly, which shows no band"
        return found._replace(low=None, high=None, reason=exact)
    if len(counts) == 2:
        few = "two counts leave no row to judge the law: the band is the error of a constant step"
        return found._replace(error_left_out=None, rows_left_out=0, reason=few)
    return found


def _unit(table: EpochTable) -> str:
    """Of its times, as they are printed."""
    return "ms" if table.of_steps else "s"


def _rounding(table: EpochTable, target: EpochTime, rows: Sequence[EpochTime], named: str) -> float:
    """By how much the law's value may be off because the rows' times are rounded, as a logarithm:
    each row's own rounding moves it independently.
    """
    law = next(candidate for candidate in _laws(target, rows) if candidate.name == named)
    seconds = np.array([row.epoch_seconds for row in rows], dtype=float)
    value = law.at_target(seconds)
    if value is None:
        return 0.0
    changes = []
    for index, row in enumerate(rows):
        off_s = row.resolution_s
        if off_s is None:
            off_s = table.rounding_s
        rounded = seconds.copy()
        rounded[index] += off_s
        moved = law.at_target(rounded)
        if moved is not None:
            changes.append(math.log(moved / value))
    return math.hypot(*changes)


def _measured_seconds(target: EpochTime, rows: Sequence[EpochTime]) -> float | None:
    """The median of the rows that are of the target's strategy, devices and nodes."""
    place = (target.strategy, target.devices, target.nodes)
    seconds = [
        row.epoch_seconds
        for row in rows
        if (row.strategy, row.devices, row.nodes) == place and row.epoch_seconds is not None
    ]
    return median(seconds) if seconds else None


def _best(target: EpochTime, rows: Sequence[EpochTime]) -> BestLaw | None:
    laws = _laws(target, rows)
    counts = np.array([row.devices for row in rows], dtype=float)
    seconds = np.array([row.epoch_seconds for row in rows], dtype=float)
    best = best_law(laws, counts, seconds, target.devices)
    if best is None or best.error > MISSED or len(set(counts)) > 2:
        return best
    _, line, _ = laws
    through_both = line.at_target(seconds)
    if through_both is None:
        return None
    return replace(best, law=line.name, value=through_both)


def prediction_tables(predicted: Sequence[Predicted]) -> list[TextTable]:
    """A table of predictions for each study and run, with the reason for each missing number."""
    places = grouped((place(row.study, row.run), row) for row in predicted)
    tables = []
    for where, rows in places.items():
        title = f"{where}: predicted times"
        fields = _fields(rows[0].unit)
        tables.append(table_of(title, fields, rows, _reasons(rows)))
    return tables


def headline(predicted: Sequence[Predicted]) -> str:
    """How many of the times have a prediction, and the first few of them."""
    if not predicted:
        return "No prediction: the table has no time of several devices."
    known = [row for row in predicted if row.value is not None]
    measured = [row for row in known if row.law == MEASURED]
    by_law = len(known) - len(measured)
    asked = counted(len(predicted), "time")
    answer = f"{by_law} of {asked} predicted"
    if measured:
        answer += f", {len(measured)} measured"
    lines = [f"{answer}."]
    first = known[:_MOST_NAMED]
    for row in first:
        lines.append(_named_time(row))
    return "\n".join(lines)


def _named_time(row: Predicted) -> str:
    """The time of one configuration, with its band or that it was measured."""
    source = place(row.study, row.run)
    setting = f"{source}, {row.strategy}"
    if row.batch_size is not None:
        setting += f", batch {row.batch_size}"
    where = layout(row.devices, row.nodes)
    value = significant(row.value)
    basis = row.law
    if row.low is not None:
        low = significant(row.low)
        high = significant(row.high)
        basis = f"{low} to {high}"
    return f"{setting}, N {where}: {value} {row.unit} ({basis})."


def _fields(unit: str) -> list[Field]:
    return [
        Field("strategy", "strategy"),
        Field("batch", "batch_size"),
        Field("N", lambda row: layout(row.devices, row.nodes)),
        Field(f"time [{unit}]", lambda row: significant(row.value)),
        Field(f"low [{unit}]", lambda row: significant(row.low)),
        Field(f"high [{unit}]", lambda row: significant(row.high)),
        Field("law", "law"),
        Field("error", "error_left_out", "share"),
        Field("wider", lambda row: significant(row.wider)),
        Field("rows", "rows_left_out"),
        Field("from N", _measured_counts),
    ]


def _measured_counts(row: Predicted) -> str:
    smallest = min(row.measured)
    largest = max(row.measured)
    if smallest == largest:
        return str(smallest)
    return f"{smallest} to {largest}"


def legend(table: EpochTable) -> str:
    """What the columns of predictions hold."""
    what = "a step" if table.of_steps else "an epoch"
    return (
        "batch: as in the table's batch_size. "
        "N: devices, 4x2 on four nodes. "
        f"time: of {what}. "
        "low: lower end of the band that holds 9 of 10 errors on the rows left out, "
        "to the power `wider`. "
        "law: the one that errs least on those rows. "
        "error: its root mean square there. "
        "wider: by the distance in devices. "
        "rows: how many are left out; a few show little of the error. "
        "from N: the measured counts. "
        f"{NA}: the reason is below the table."
    )


def _reasons(predicted: Sequence[Predicted]) -> list[str]:
    """Each reason once, after the series and counts that have it."""
    notes = []
    reasons = grouped((row.reason, row) for row in predicted if row.reason)
    for reason, without in reasons.items():
        series = grouped(
            ((row.strategy, row.batch_size), layout(row.devices, row.nodes)) for row in without
        )
        settings = []
        for (strategy, batch_size), counts in series.items():
            setting = strategy
            if batch_size is not None:
                setting += f", batch {batch_size}"
            setting += f", N {' and '.join(counts)}"
            settings.append(setting)
        notes.append(f"{'; '.join(settings)}: {reason}.")
    return notes


def _not_comparable(target: EpochTime, rows: Sequence[EpochTime]) -> str:
    """Why the rows show nothing of the configuration; empty where they may."""
    counts = {row.devices for row in rows}
    largest = max(counts)
    if len(counts) < 2:
        return "one device count shows no law: measure another at the same batch"
    if target.devices > FARTHEST * largest:
        return f"more than {FARTHEST:g} times the largest measured count ({largest})"
    spans = {_level(row) for row in rows if row.devices > 1}
    level = _level(target)
    if target.devices > 1 and level not in spans:
        return f"no row {level} was measured: its cost is not known"
    return ""


def _level(row: EpochTime) -> str:
    """Which links its devices communicate over."""
    _, nodes = _place(row)
    return "between nodes" if nodes > 1 else "within one node"


def _distance(counts: Sequence[int], devices: int) -> float:
    """The factor by which the band grows beyond the largest count: 1 as far from it as it is from
    the next one.
    """
    *_, next_largest, largest = counts
    beyond = math.log(devices / largest)
    apart = math.log(largest / next_largest)
    farther = beyond / apart
    return math.sqrt(max(1.0, farther))


def _rounded(value: float) -> float:
    """To 12 digits, so that what is exact apart from rounding is exact."""
    return float(f"{value:.12g}") if abs(value) > 1e-12 else 0.0


def _shares_steps(target: EpochTime, rows: Sequence[EpochTime]) -> bool:
    """Whether the devices share the steps of an epoch, at a fixed batch of each."""
    if target.batch_size_is != "per_device":
        return False
    samples = []
    for row in rows:
        if row.epoch_samples:
            samples.append(row.epoch_samples / row.devices)
    if not samples:
        return True
    return max(samples) >= _FEWER_STEPS * min(samples)


def _is_constant_work(target: EpochTime, rows: Sequence[EpochTime]) -> bool:
    """Whether each device has as much to do on any number of devices, so that none are faster."""
    return target.batch_size_is == "per_device" and not _shares_steps(target, rows)


def _laws(target: EpochTime, rows: Sequence[EpochTime]) -> list[Law]:
    """The laws of the module's text, for the rows and the configuration."""
    shared_steps = _shares_steps(target, rows)
    shared_batch = target.batch_size_is == "global"

    def steps(row: EpochTime) -> float:
        return 1 / row.devices if shared_steps else 1.0

    def constant(row: EpochTime) -> list[float]:
        return [steps(row)]

    def line(row: EpochTime) -> list[float]:
        return [1.0, 1 / row.devices]

    def ring(row: EpochTime) -> list[float]:
        costs = [1 / row.devices if shared_batch else 1.0]
        for count in _place(row):
            hops = count - 1
            transfers = bus_factor("all_reduce", count) or 0.0
            costs += [hops, transfers]
        return [steps(row) * cost for cost in costs]

    laws = {"constant step": constant, "a + b/n": line, "ring": ring}
    return [
        Law(
            name,
            np.array([terms(row) for row in rows]),
            np.array(terms(target)),
            costs=terms is ring,
        )
        for name, terms in laws.items()
    ]


def _place(row: EpochTime) -> tuple[int, int]:
    """Devices per node, and nodes."""
    nodes = row.nodes or 1
    return -(-row.devices // nodes), nodes
