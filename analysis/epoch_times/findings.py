"""Findings about a table of times: what is wrong, missing or easily misread. Each is reported once per study and run."""

from collections.abc import Callable, Iterator, Sequence

from dpscope.analysis.epoch_times.baselines import Baselines
from dpscope.analysis.epoch_times.epoch_time import EpochTime, at, place
from dpscope.analysis.epoch_times.estimates import EpochEstimate, length_unknown
from dpscope.analysis.epoch_times.table import EpochTable
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, counted, grouped, listed
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import nearest

COARSE_SHARE = 0.25  # of a value: larger bounds by the clock's resolution are reported
RUNS_DIFFER_FROM = 0.05
UNEVEN_FROM = 0.05

_RowCheck = Callable[[EpochTime, Baselines], str]
_EstimateCheck = Callable[[EpochEstimate], str]


def table_findings(table: EpochTable, estimates: Sequence[EpochEstimate]) -> list[Finding]:
    """Findings about a table and its estimates."""
    baselines = Baselines(table.rows)
    found = list(_columns(table))
    for code, (what, row_check) in _ROW_CHECKS.items():
        cells = ((place(row.study, row.run), row_check(row, baselines)) for row in table.rows)
        found += _reported(code, what, cells)
    for code, (what, check) in _ESTIMATE_CHECKS.items():
        cells = ((place(one.study, one.run), check(one)) for one in estimates if one.value is not None)
        found += _reported(code, what, cells)
    return [*found, *_runs_differ(table.rows), *_data_parallel(table.rows)]


def _reported(code: EstimateCode, what: str, cells: Iterator[tuple[str, str]]) -> Iterator[Finding]:
    """A finding for each study and run with a cell that is not empty."""
    for where, texts in grouped((where, text) for where, text in cells if text).items():
        yield code.finding(f"{where}: {what}: {listed(texts)}")


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


def _batch_unknown(row: EpochTime, _: Baselines) -> str:
    return _at(row) if row.batch_size_is is None and row.devices > 1 else ""


def _steps_contradict(row: EpochTime, _: Baselines) -> str:
    steps, samples, batch = row.steps_per_epoch, row.samples_per_epoch, row.global_batch
    if not steps or not samples or not batch or row.repeats_data:
        return ""
    return "" if steps in (samples // batch, -(-samples // batch)) else f"{counted(steps, 'step')} at {_at(row)}"


def _batch_too_large(row: EpochTime, _: Baselines) -> str:
    batch = row.global_batch or row.batch_size
    if row.samples_per_epoch is None or batch <= row.samples_per_epoch:
        return ""
    return f"{batch} of {counted(row.samples_per_epoch, 'sample')}"


def _length_unknown(row: EpochTime, baselines: Baselines) -> str:
    single, _ = baselines.find(row, row.batch_size, sweep_first=False)
    reason = "" if single is None else length_unknown(row, single)
    return f"{_at(row)}: {reason}" if reason else ""


def _no_baseline(row: EpochTime, baselines: Baselines) -> str:
    """Why the added time is unknown for want of a comparable single-device time; one that ran out of memory needs no time."""
    if row.devices == 1 or row.epoch_seconds is None or row.local_batch is None:
        return ""
    single, why = baselines.find(row, row.local_batch, sweep_first=True)
    return f"{_at(row)}: {why}" if single is None and not baselines.out_of_memory(row, row.local_batch) else ""


def _uneven(row: EpochTime, _: Baselines) -> str:
    """By how much N devices take more than one device's steps: N ceil(samples/(N b)) over ceil(samples/b)."""
    b, samples, n = row.local_batch, row.samples_per_epoch, row.devices
    if b is None or samples is None or b * n > samples:
        return ""
    more = n * -(-samples // (b * n)) / -(-samples // b) - 1
    return f"{_at(row)} by {more:.0%}" if more > UNEVEN_FROM else ""


def _typed(row: EpochTime, _: Baselines) -> str:
    return f"{row.epoch_seconds:g} s" if row.provenance == "typed" and row.epoch_seconds else ""


def _out_of_memory(row: EpochTime, _: Baselines) -> str:
    return f"{row.strategy} {_at(row)}" if row.epoch_seconds is None else ""


_ROW_CHECKS: dict[EstimateCode, tuple[str, _RowCheck]] = {
    EstimateCode.BATCH_MEANING_UNKNOWN: ("whether batch_size is global or per device is unknown at", _batch_unknown),
    EstimateCode.STEPS_CONTRADICT_BATCH: ("the steps do not fit batch_size_is", _steps_contradict),
    EstimateCode.BATCH_EXCEEDS_DATASET: ("an epoch is one batch of the whole data set", _batch_too_large),
    EstimateCode.EPOCH_LENGTH_UNKNOWN: ("the samples of an epoch are unknown", _length_unknown),
    EstimateCode.NO_SAME_LOCAL_BASELINE: ("the added time is unknown", _no_baseline),
    EstimateCode.UNEVEN_EPOCH: ("an epoch on N devices has more than 1/N of one device's steps", _uneven),
    EstimateCode.TIMES_TYPED: ("typed into a document, without output of the runs", _typed),
    EstimateCode.OUT_OF_MEMORY: ("out of memory, so that comparisons are unknown, not 0", _out_of_memory),
}


def _negative(one: EpochEstimate) -> str:
    is_negative = one.quantity == "communication_seconds" and (one.value or 0.0) < 0
    return f"{one.method} {one.value:.4g} s at {_at(one)}" if is_negative else ""


def _coarse(one: EpochEstimate) -> str:
    """A sign, or more than a quarter of the added time, that the clock's resolution leaves open."""
    high = "unbounded" if one.high is None else f"{one.high:.4g}"
    width = (one.high or 0.0) - (one.low or 0.0)
    is_wide = one.quantity == "communication_seconds" and width > 2 * COARSE_SHARE * abs(one.value or 0.0)
    if not one.uncertain and not is_wide:
        return ""
    return f"{one.quantity} {one.method} {_at(one)} {one.value:.4g} [{one.low:.4g}, {high}]"


def _superlinear(one: EpochEstimate) -> str:
    is_more = one.quantity == "speedup" and one.sound and (one.low or 0.0) > one.devices
    return f"{one.value:.2f}x on {one.devices} ({one.method}, batch {one.batch_size})" if is_more else ""


_ESTIMATE_CHECKS: dict[EstimateCode, tuple[str, _EstimateCheck]] = {
    EstimateCode.NEGATIVE_COMMUNICATION: ("negative, so not a communication time", _negative),
    EstimateCode.CLOCK_TOO_COARSE: ("the clock's resolution leaves open", _coarse),
    EstimateCode.SUPERLINEAR_SPEEDUP: ("more than N times as fast on N devices", _superlinear),
}


def _runs_differ(rows: Sequence[EpochTime]) -> Iterator[Finding]:
    """Runs of one study that repeat a setting and differ by more than their clocks' resolution."""
    same = grouped(((*row._replace(run=None).setting, row.hardware, row.model, row.batch_size_is), row) for row in rows)
    differing: list[tuple[str | None, float, str]] = []
    for repeated in same.values():
        timed = sorted(
            ((row.seconds, row) for row in repeated if row.seconds is not None), key=lambda pair: pair[0].value
        )
        if not timed:
            continue
        (low, row), (high, _) = timed[0], timed[-1]
        excess = high.value / low.value - 1
        if high.low > low.high and excess > RUNS_DIFFER_FROM:
            text = f"{row.strategy} {_at(row)} {low.value:.5g} and {high.value:.5g} s: {excess:.1%}"
            differing.append((row.study, excess, text))
    differing.sort(key=lambda one: -one[1])
    for study, texts in grouped((study, text) for study, _, text in differing).items():
        yield EstimateCode.RUNS_DIFFER.finding(
            f"{place(study, None)}: runs of the same setting differ: {listed(texts)}"
        )


def _data_parallel(rows: Sequence[EpochTime]) -> Iterator[Finding]:
    copying = (row for row in rows if traits_of(row.strategy).peer_copies and row.devices > 1)
    if studies := dict.fromkeys(place(row.study, None) for row in copying):
        yield EstimateCode.DP_IS_NO_ALL_REDUCE.finding(
            f"{', '.join(studies)}: DataParallel broadcasts parameters and reduces gradients to device 0, 2 S a "
            "step for any N; it runs no all-reduce, so the ring volume 2(N-1)/N S does not describe it"
        )


def _at(one: EpochTime | EpochEstimate) -> str:
    return at(one.batch_size, one.devices, one.nodes)
