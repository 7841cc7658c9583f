"""Findings about a table of epoch times: what is wrong, missing or easily misread."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from dpscope.analysis.epoch_times.baselines import Baselines
from dpscope.analysis.epoch_times.epoch_time import EpochTime, at, place
from dpscope.analysis.epoch_times.estimates import MAY_BE_EQUAL_STEPS, EpochEstimate, EpochLaw, epoch_length_unknown
from dpscope.analysis.epoch_times.table import EpochTable
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import nearest

COARSE_SHARE = 0.25  # of a value: a larger clock resolution is reported
RUNS_DIFFER_FROM = 0.05
LITTLE_SPEEDUP = 1.1
UNEVEN_FROM = 0.05
_SUBTRACTIONS = {
    "same_local_batch": "T_N - T_1(b)/N at the same batch per device",
    "ideal_split": "T_N - T_1/N at a fixed global batch",
    "same_total": "T_N - T_1 at a fixed global batch",
}

_ADDED = ("communication_seconds", "same_local_batch")

_Item = TypeVar("_Item", EpochTime, EpochEstimate, EpochLaw)
_Estimates = Sequence[EpochEstimate]


def table_findings(table: EpochTable, found: _Estimates) -> list[Finding]:
    """Findings about a table and its estimates; each kind once per study and run, or once for all."""
    rows = table.rows
    timed = [one for one in found if one.quantity in ("communication_seconds", "speedup") and one.value is not None]
    added = [one for one in timed if one.quantity == "communication_seconds"]
    return [
        *_columns(table),
        *_batches(rows),
        *_negative(added),
        *_coarse_clock(timed, added),
        *_epoch_lengths(rows),
        *_no_baseline(rows, found),
        *_uneven_epochs(rows),
        *_runs_differ(rows),
        *_speedups([one for one in timed if one.quantity == "speedup" and one.sound]),
        *_origins(rows),
    ]


def by_run(items: Iterable[_Item]) -> Iterable[tuple[str, list[_Item]]]:
    """Items by study and run, as `place` names them, in order."""
    return grouped((place(item.study, item.run), item) for item in items).items()


def _at(one: EpochTime | EpochEstimate) -> str:
    return at(one.batch_size, one.devices, one.nodes)


def _columns(table: EpochTable) -> Iterator[Finding]:
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


def _batches(rows: Sequence[EpochTime]) -> Iterator[Finding]:
    for where, unknown in by_run(row for row in rows if row.batch_size_is is None and row.devices > 1):
        yield EstimateCode.BATCH_MEANING_UNKNOWN.finding(
            f"{where}: whether batch_size is global or per device is unknown in {counted(len(unknown), 'row')}"
        )
    sampled = [(row, row.global_batch, row.samples_per_epoch) for row in rows if row.samples_per_epoch is not None]
    wrong = (
        row
        for row, size, samples in sampled
        if row.steps_per_epoch
        and size
        and row.steps_per_epoch not in (samples // size, -(-samples // size))
        and not row.repeats_data
    )
    for where, group in by_run(wrong):
        cells = [f"{counted(row.steps_per_epoch or 0, 'step')} at {_at(row)}" for row in group]
        yield EstimateCode.STEPS_CONTRADICT_BATCH.finding(
            f"{where}: {listed(cells)} do not fit a batch that is {group[0].batch_size_is} on "
            f"{counted(group[0].samples_per_epoch or 0, 'sample')}"
        )
    for where, group in by_run(row for row, size, samples in sampled if (size or row.batch_size) > samples):
        sizes = [row.global_batch or row.batch_size for row in group]
        times_s = [row.epoch_seconds for row in group if row.epoch_seconds is not None and row.devices == 1]
        spread = ""
        if len(times_s) > 1:
            spread = f"; on one device they are the same single step, but take {min(times_s):g} to {max(times_s):g} s"
        yield EstimateCode.BATCH_EXCEEDS_DATASET.finding(
            f"{where}: in {counted(len(group), 'row')}, with batches of {min(sizes)} to {max(sizes)}, an epoch is one batch of "
            f"the whole data set of {counted(group[0].samples_per_epoch or 0, 'sample')}{spread}"
        )


def _negative(added: _Estimates) -> Iterator[Finding]:
    for method, formula in _SUBTRACTIONS.items():
        for where, group in by_run(one for one in added if one.method == method and (one.value or 0.0) < 0):
            cells = listed([f"{one.value:.4g} s at {_at(one)}" for one in group])
            yield EstimateCode.NEGATIVE_COMMUNICATION.finding(
                f"{where}: {formula} is negative, so it cannot be communication: {cells}"
            )


def _coarse_clock(timed: _Estimates, added: _Estimates) -> Iterator[Finding]:
    def bounds(one: EpochEstimate) -> str:
        high = "unbounded" if one.high is None else f"{one.high:.4g}"
        return f"{one.method} {_at(one)} {one.value:.4g} [{one.low:.4g}, {high}]"

    for where, group in by_run(one for one in timed if one.uncertain):
        cells = listed([f"{one.quantity} {bounds(one)}" for one in group])
        yield EstimateCode.SIGN_NOT_CERTAIN.finding(
            f"{where}: at the clock's resolution these may be above or below zero added time, or a speedup of 1: {cells}"
        )
    certain = [(one, (one.high or 0.0) - (one.low or 0.0)) for one in added if not one.uncertain]
    for where, group in by_run(one for one, width in certain if width > 2 * COARSE_SHARE * abs(one.value or 0.0)):
        yield EstimateCode.RESOLUTION_TOO_COARSE.finding(
            f"{where}: the clock's resolution is more than {COARSE_SHARE:.0%} of these times: "
            f"{listed([bounds(one) for one in group])}"
        )


def _epoch_lengths(rows: Sequence[EpochTime]) -> Iterator[Finding]:
    """Rows whose epoch has other samples than one device's, and those of which this is unknown."""
    baselines = Baselines(rows)
    longer: list[tuple[EpochTime, float]] = []
    unknown: list[tuple[EpochTime, float]] = []
    for row in rows:
        if row.batch_size_is != "per_device" or row.devices == 1 or row.epoch_seconds is None:
            continue
        single, _ = baselines.find(row, row.batch_size, sweep_first=False)
        if single is None or single.epoch_seconds is None:
            continue
        samples, ratio = row.samples_over(single), single.epoch_seconds / row.epoch_seconds
        if samples is None and ratio < MAY_BE_EQUAL_STEPS:
            unknown.append((row, ratio))
        elif samples is not None and samples != 1.0:
            longer.append((row, samples))
    for where, group in grouped((place(row.study, row.run), (row, samples)) for row, samples in longer).items():
        cells = listed([f"{samples:.3g} times as many at {_at(row)}" for row, samples in group])
        yield EstimateCode.EPOCHS_OF_OTHER_SAMPLES.finding(
            f"{where}: an epoch has other samples than one device's: {cells}; values compare the time of as many samples"
        )
    for where, group in grouped((place(row.study, row.run), (row, ratio)) for row, ratio in unknown).items():
        cells = listed([f"{_at(row)}: {epoch_length_unknown(row.devices, ratio)}" for row, ratio in group])
        yield EstimateCode.EPOCH_LENGTH_UNKNOWN.finding(f"{where}, {cells}")


def _no_baseline(rows: Sequence[EpochTime], found: _Estimates) -> Iterator[Finding]:
    """Rows whose added time is unknown for want of a single-device time, or of one that is comparable."""
    added = {one.setting: one for one in found if (one.quantity, one.method) == _ADDED}
    baselines = Baselines(rows)
    lacking = [
        row
        for row in rows
        if row.setting in added
        and row.epoch_seconds is not None
        and row.local_batch is not None
        and baselines.find(row, row.local_batch, sweep_first=True)[0] is None
    ]
    singles = [(row.study, row.model, row.batch_size) for row in rows if row.devices == 1 and row.epoch_seconds is None]
    lacking = [row for row in lacking if (row.study, row.model, row.local_batch) not in singles]
    timed = {(row.study, row.batch_size) for row in rows if row.devices == 1}
    for where, group in by_run(row for row in lacking if (row.study, row.local_batch) not in timed):
        batches = ", ".join(map(str, sorted({row.local_batch or 0 for row in group})))
        yield EstimateCode.NO_SAME_LOCAL_BASELINE.finding(
            f"{where}: the added time is unknown at {listed([_at(row) for row in group])}, as no single-device time at the same "
            "batch per device was measured",
            f"time one device at batch {batches}",
        )
    for where, group in by_run(row for row in lacking if (row.study, row.local_batch) in timed):
        cells = [f"{_at(row)}: {added[row.setting].reason}" for row in group]
        yield EstimateCode.NO_SAME_LOCAL_BASELINE.finding(
            f"{where}: the added time is unknown although one device was timed at the same batch per device, at {listed(cells)}",
            "give a row and its single-device row the same run, model and dataset",
        )


def _uneven_epochs(rows: Sequence[EpochTime]) -> Iterator[Finding]:
    def extra_steps(row: EpochTime) -> float:
        """N ceil(samples/(N b)) over ceil(samples/b), minus one; 0 where unknown."""
        b, samples = row.local_batch, row.samples_per_epoch
        if b is None or samples is None or row.devices == 1 or b * row.devices > samples:
            return 0.0
        return row.devices * -(-samples // (b * row.devices)) / -(-samples // b) - 1

    for where, group in by_run(row for row in rows if extra_steps(row) > UNEVEN_FROM):
        cells = [f"{_at(row)} by {extra_steps(row):.0%}" for row in group]
        yield EstimateCode.UNEVEN_EPOCH.finding(
            f"{where}: the last step of an epoch is far from full, so an epoch on N devices has more than 1/N of one "
            f"device's steps: {listed(cells)}; T_1/N does not include their fixed cost"
        )


def _runs_differ(rows: Sequence[EpochTime]) -> Iterator[Finding]:
    """Runs of one study that repeat a setting and differ by more than their clocks' resolution."""
    same = grouped(
        (
            (
                row.study,
                row.hardware,
                row.model,
                row.strategy,
                row.batch_size,
                row.batch_size_is,
                row.devices,
                row.nodes,
            ),
            row,
        )
        for row in rows
        if row.epoch_seconds is not None
    )
    worst: dict[str | None, list[tuple[float, str]]] = {}
    unplaced: set[str | None] = set()  # studies in which the number of nodes may be the difference
    for repeated in same.values():
        repeated.sort(key=lambda row: row.epoch_seconds or 0.0)
        first, low, high = repeated[0], repeated[0].seconds, repeated[-1].seconds
        if low and high and high.low > low.high and (excess := high.value / low.value - 1) > RUNS_DIFFER_FROM:
            setting = f"{first.strategy} {_at(first)}"
            text = f"{setting} {low.value:.5g} and {high.value:.5g} s: {excess:.1%}"
            worst.setdefault(first.study, []).append((excess, text))
            if first.devices > 1 and first.nodes is None:
                unplaced.add(first.study)
    for study, pairs in worst.items():
        cells = listed([text for _, text in sorted(pairs, reverse=True)])
        next_step = EstimateCode.RUNS_DIFFER.next_step
        if study in unplaced:
            next_step = f"add a column nodes if their numbers of nodes differ; else {next_step}"
        yield EstimateCode.RUNS_DIFFER.finding(
            f"{place(study, None)}: runs of the same setting differ: {cells}", next_step
        )


def _speedups(sound: _Estimates) -> Iterator[Finding]:
    def cells(group: _Estimates) -> str:
        return listed([f"{one.value:.2f}x on {one.devices} ({one.method}, batch {one.batch_size})" for one in group])

    slow = by_run(one for one in sound if (one.value or 0.0) < LITTLE_SPEEDUP)
    if little := "; ".join(f"{where}: {cells(group)}" for where, group in slow):
        yield EstimateCode.LITTLE_SPEEDUP.finding(f"several devices are slower than one, or hardly faster: {little}")
    for where, group in by_run(one for one in sound if (one.low or 0.0) > one.devices):
        yield EstimateCode.SUPERLINEAR_SPEEDUP.finding(
            f"{where}: more than N times as fast on N devices: {cells(group)}"
        )


def _origins(rows: Sequence[EpochTime]) -> Iterator[Finding]:
    data_parallel = (row for row in rows if traits_of(row.strategy).peer_copies and row.devices > 1)
    if studies := dict.fromkeys(place(row.study, None) for row in data_parallel):
        yield EstimateCode.DP_IS_NO_ALL_REDUCE.finding(
            f"{', '.join(studies)}: DataParallel broadcasts parameters and reduces gradients to device 0, 2 S a "
            "step for any N; it runs no all-reduce, so the ring volume 2(N-1)/N S does not describe it"
        )
    for where, group in by_run(row for row in rows if row.provenance == "typed"):
        yield EstimateCode.TIMES_TYPED.finding(
            f"{where}: {counted(len(group), 'time')} typed into a document, without output of the runs"
        )
    for where, group in by_run(row for row in rows if row.epoch_seconds is None):
        cells = listed([f"{row.strategy} {_at(row)}" for row in group])
        yield EstimateCode.OUT_OF_MEMORY.finding(
            f"{where}: no time for {cells} (batch_size, devices): out of memory; its comparisons are unknown, not 0"
        )
