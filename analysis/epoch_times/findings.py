"""Findings about a table of epoch times: what is wrong, missing or easily misread."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from dpscope.analysis.epoch_times.baselines import epoch_bounds, global_batch, local_batch
from dpscope.analysis.epoch_times.estimates import EpochEstimate
from dpscope.analysis.epoch_times.table import EpochTable, EpochTime, at, listed, place
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import nearest

COARSE_SHARE = 0.25  # of a value: a larger clock resolution is reported
RUNS_DIFFER_FROM = 0.05
LITTLE_SPEEDUP = 1.1
UNEVEN_FROM = 0.05

_Item = TypeVar("_Item", EpochTime, EpochEstimate)


_Found = Sequence[EpochEstimate]


def table_findings(table: EpochTable, found: _Found) -> list[Finding]:
    """Findings about a table and its estimates; each kind once per study and run, or once for all."""
    return [finding for check in _CHECKS for finding in check(table, found)]


def _grouped(items: Iterable[_Item]) -> Iterator[tuple[str, list[_Item]]]:
    """Items by study and run, in order."""
    groups: dict[str, list[_Item]] = {}
    for item in items:
        groups.setdefault(place(item.study, item.run), []).append(item)
    return iter(groups.items())


def _columns(table: EpochTable, found: _Found) -> Iterator[Finding]:
    if table.unknown_columns:
        meant = {name: nearest(name, table.absent_columns) for name in table.unknown_columns}
        names = [f"{name!r}" + (f" (did you mean {near[0]}?)" if near else "") for name, near in meant.items()]
        yield EstimateCode.UNKNOWN_COLUMN.finding(f"unknown columns, not used: {', '.join(names)}")
    if "resolution_s" in table.absent_columns:
        yield EstimateCode.RESOLUTION_UNKNOWN.finding(
            "no column resolution_s: times are taken as exact, so low and high equal the value"
        )
    if not any(row.devices > 1 for row in table.rows):
        yield EstimateCode.NOTHING_TO_ESTIMATE.finding("the table has no row with several devices")


def _out_of_memory(table: EpochTable, found: _Found) -> Iterator[Finding]:
    for where, rows in _grouped(row for row in table.rows if row.epoch_seconds is None):
        cells = listed([f"{row.strategy} {at(row.batch_size, row.devices)}" for row in rows])
        yield EstimateCode.OUT_OF_MEMORY.finding(
            f"{where}: no time for {cells} (batch_size, devices): out of memory; its comparisons are unknown, not 0"
        )


def _batch_meaning(table: EpochTable, found: _Found) -> Iterator[Finding]:
    unknown = (row for row in table.rows if row.batch_size_is is None and row.devices > 1)
    for where, rows in _grouped(unknown):
        yield EstimateCode.BATCH_MEANING_UNKNOWN.finding(
            f"{where}: whether batch_size is global or per device is unknown in {counted(len(rows), 'row')}"
        )
    for where, rows in _grouped(row for row in table.rows if _steps_contradict(row)):
        cells = [f"{counted(row.steps_per_epoch or 0, 'step')} at {at(row.batch_size, row.devices)}" for row in rows]
        yield EstimateCode.STEPS_CONTRADICT_BATCH.finding(
            f"{where}: {listed(cells)} do not fit a batch that is {rows[0].batch_size_is} on "
            f"{counted(rows[0].samples_per_epoch or 0, 'sample')}"
        )


def _steps_contradict(row: EpochTime) -> bool:
    """Whether the stated steps are neither floor nor ceil of samples / G."""
    size = global_batch(row)
    if row.steps_per_epoch is None or size is None or row.samples_per_epoch is None:
        return False
    return row.steps_per_epoch not in (row.samples_per_epoch // size, -(-row.samples_per_epoch // size))


def _batch_exceeds_dataset(table: EpochTable, found: _Found) -> Iterator[Finding]:
    def whole_batch(row: EpochTime) -> int:
        return global_batch(row) or row.batch_size

    small = [row for row in table.rows if row.samples_per_epoch and whole_batch(row) > row.samples_per_epoch]
    for where, rows in _grouped(small):
        sizes = [whole_batch(row) for row in rows]
        times_s = [row.epoch_seconds for row in rows if row.epoch_seconds is not None and row.devices == 1]
        spread = ""
        if len(times_s) > 1:
            shortest, longest = min(times_s), max(times_s)
            spread = f"; on one device they are the same single step, but take {shortest:g} to {longest:g} s"
        yield EstimateCode.BATCH_EXCEEDS_DATASET.finding(
            f"{where}: in {counted(len(rows), 'row')}, with batches of {min(sizes)} to {max(sizes)}, an epoch is one batch of "
            f"the whole data set of {counted(rows[0].samples_per_epoch or 0, 'sample')}{spread}"
        )


def _runs_differ(table: EpochTable, found: _Found) -> Iterator[Finding]:
    """Runs of one study that repeat a setting and differ by more than their clocks' resolution."""
    same: dict[tuple[object, ...], list[EpochTime]] = {}
    for row in table.rows:
        key = (row.study, row.hardware, row.model, row.strategy, row.batch_size, row.batch_size_is, row.devices)
        if row.epoch_seconds is not None:
            same.setdefault(key, []).append(row)
    worst: dict[str | None, list[tuple[float, str]]] = {}
    for rows in same.values():
        rows.sort(key=lambda row: row.epoch_seconds or 0.0)
        first, last = rows[0], rows[-1]
        low, high = epoch_bounds(first), epoch_bounds(last)
        if low and high and high.low > low.high and (excess := high.value / low.value - 1) > RUNS_DIFFER_FROM:
            setting = f"{first.strategy} {at(first.batch_size, first.devices)}"
            text = f"{setting} {low.value:.5g} and {high.value:.5g} s: {excess:.1%}"
            worst.setdefault(first.study, []).append((excess, text))
    for study, pairs in worst.items():
        cells = listed([text for _, text in sorted(pairs, reverse=True)])
        yield EstimateCode.RUNS_DIFFER.finding(f"{place(study, None)}: runs of the same setting differ: {cells}")


def _negative(table: EpochTable, found: _Found) -> Iterator[Finding]:
    negative = [e for e in found if e.quantity == "communication_seconds" and (e.value or 0.0) < 0]
    for method, formula in _SUBTRACTIONS.items():
        for where, group in _grouped(e for e in negative if e.method == method):
            cells = listed([f"{e.value:.4g} s at {at(e.batch_size, e.devices)}" for e in group])
            yield EstimateCode.NEGATIVE_COMMUNICATION.finding(
                f"{where}: {formula} is negative, so it cannot be communication: {cells}"
            )


_SUBTRACTIONS = {
    "same_local_batch": "T_N - T_1(b)/N at the same batch per device",
    "ideal_split": "T_N - T_1/N at a fixed global batch",
    "same_total": "T_N - T_1 at a fixed global batch",
}


def _clock(table: EpochTable, found: _Found) -> Iterator[Finding]:
    timed = [e for e in found if e.quantity in ("communication_seconds", "speedup") and e.value is not None]
    for where, group in _grouped(e for e in timed if _sign_open(e)):
        cells = [f"{e.quantity} {e.method} {at(e.batch_size, e.devices)} {_range(e)}" for e in group]
        yield EstimateCode.SIGN_NOT_CERTAIN.finding(
            f"{where}: at the clock's resolution these may be above or below zero added time, or a speedup of 1: {listed(cells)}"
        )
    added = (e for e in timed if e.quantity != "speedup" and not _sign_open(e))
    coarse = [e for e in added if (e.high or 0.0) - (e.low or 0.0) > 2 * COARSE_SHARE * abs(e.value or 0.0)]
    for where, group in _grouped(coarse):
        cells = [f"{e.method} {at(e.batch_size, e.devices)} {_range(e)}" for e in group]
        yield EstimateCode.RESOLUTION_TOO_COARSE.finding(
            f"{where}: the clock's resolution is more than {COARSE_SHARE:.0%} of these times: {listed(cells)}"
        )


def _sign_open(estimate: EpochEstimate) -> bool:
    level = 1.0 if estimate.quantity == "speedup" else 0.0
    low, high = estimate.low, estimate.high
    return low is not None and low <= level and (high is None or (level <= high and low < high))


def _range(estimate: EpochEstimate) -> str:
    high = "unbounded" if estimate.high is None else f"{estimate.high:.4g}"
    return f"{estimate.value:.4g} [{estimate.low:.4g}, {high}]"


def _no_baseline(table: EpochTable, found: _Found) -> Iterator[Finding]:
    lacking = [row for row in table.rows if row.devices > 1 and row.epoch_seconds is not None and local_batch(row)]
    known = [e for e in found if e.method == "same_local_batch" and e.value is not None]
    settings = {e[:5] for e in known if e.quantity == "communication_seconds"}
    for where, rows in _grouped(row for row in lacking if row.setting not in settings):
        cells = listed([at(row.batch_size, row.devices) for row in rows])
        batches = ", ".join(str(b) for b in sorted({local_batch(row) or 0 for row in rows}))
        yield EstimateCode.NO_SAME_LOCAL_BASELINE.finding(
            f"{where}: the added time is unknown at {cells}, as no single-device time at the same batch per device "
            "was measured",
            f"time one device at batch {batches}",
        )


def _speedups(table: EpochTable, found: _Found) -> Iterator[Finding]:
    sound = [e for e in found if e.quantity == "speedup" and e.sound and e.value is not None]

    def cells(group: _Found) -> str:
        return listed([f"{e.value:.2f}x on {e.devices} ({e.method}, batch {e.batch_size})" for e in group])

    slow = _grouped(e for e in sound if (e.value or 0.0) < LITTLE_SPEEDUP)
    if little := "; ".join(f"{where}: {cells(group)}" for where, group in slow):
        yield EstimateCode.LITTLE_SPEEDUP.finding(f"several devices are slower than one, or hardly faster: {little}")
    for where, group in _grouped(e for e in sound if (e.low or 0.0) > e.devices):
        yield EstimateCode.SUPERLINEAR_SPEEDUP.finding(
            f"{where}: more than N times as fast on N devices: {cells(group)}"
        )


def _strategies(table: EpochTable, found: _Found) -> Iterator[Finding]:
    studies = dict.fromkeys(
        place(row.study, None) for row in table.rows if traits_of(row.strategy).peer_copies and row.devices > 1
    )
    if studies:
        yield EstimateCode.DP_IS_NO_ALL_REDUCE.finding(
            f"{', '.join(studies)}: DataParallel broadcasts parameters and reduces gradients to device 0, 2 S a "
            "step for any N; it runs no all-reduce, so the ring volume 2(N-1)/N S does not describe it"
        )
    for where, rows in _grouped(row for row in table.rows if row.provenance == "typed"):
        yield EstimateCode.TIMES_TYPED.finding(
            f"{where}: {counted(len(rows), 'time')} typed into a document, without output of the runs"
        )


def _uneven_epochs(table: EpochTable, found: _Found) -> Iterator[Finding]:
    for where, rows in _grouped(row for row in table.rows if (_extra_steps(row) or 0.0) > UNEVEN_FROM):
        cells = [f"{at(row.batch_size, row.devices)} by {_extra_steps(row):.0%}" for row in rows]
        yield EstimateCode.UNEVEN_EPOCH.finding(
            f"{where}: the last step of an epoch is far from full, so an epoch on N devices has more than 1/N of one "
            f"device's steps: {listed(cells)}; T_1/N does not include their fixed cost"
        )


def _extra_steps(row: EpochTime) -> float | None:
    """N ceil(samples/(N b)) over ceil(samples/b), minus one."""
    b, samples = local_batch(row), row.samples_per_epoch
    if b is None or samples is None or row.devices == 1 or b * row.devices > samples:
        return None
    return row.devices * -(-samples // (b * row.devices)) / -(-samples // b) - 1


_CHECKS: tuple[Callable[[EpochTable, _Found], Iterator[Finding]], ...] = (
    _columns, _batch_meaning, _batch_exceeds_dataset, _negative, _clock, _no_baseline, _uneven_epochs, _runs_differ,
    _speedups, _strategies, _out_of_memory,
)  # fmt: skip
