"""Findings about a table of times: what is missing or easily misread. Each is reported once per
study and run.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from dpscope.analysis.epoch_times.epoch_time import UNSTATED, EpochTable, Setting, at, place
from dpscope.analysis.epoch_times.estimates import (
    NO_SINGLE,
    UNKNOWN_BATCH,
    EpochEstimate,
    no_single_time,
)
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, grouped
from dpscope.profiling.records.strategies import STRATEGIES, traits_of
from dpscope.profiling.records.typed_text import nearest

_COARSE = "uncertain at the clock's resolution"
_SUPERLINEAR = "more than N times as fast on N devices"
COARSE_SHARE = 0.25  # of a value: larger bounds by the clock's resolution are reported


def table_findings(table: EpochTable, estimates: Sequence[EpochEstimate]) -> list[Finding]:
    """Findings about a table and its estimates."""
    return [
        *_columns(table),
        *_strategies(table),
        *_added_unknown(table, estimates),
        *_reported(EstimateCode.CLOCK_TOO_COARSE, _COARSE, map(_coarse, estimates)),
        *_reported(EstimateCode.SUPERLINEAR_SPEEDUP, _SUPERLINEAR, map(_superlinear, estimates)),
        *_data_parallel(table),
    ]


def _reported(
    code: EstimateCode, what: str, seen: Iterator[tuple[str, str] | None]
) -> Iterator[Finding]:
    """A finding for each study and run with anything seen in it."""
    known = [entry for entry in seen if entry is not None]
    by_place = grouped(known)
    for where, texts in by_place.items():
        settings = "; ".join(texts)
        yield code.finding(f"{where}: {what}: {settings}")


def _columns(table: EpochTable) -> Iterator[Finding]:
    if table.unknown_columns:
        names = _with_nearest(table.unknown_columns, table.absent_columns)
        yield EstimateCode.UNKNOWN_COLUMN.finding(f"unknown columns, not used: {names}")
    if not any(row.devices > 1 for row in table.rows):
        yield EstimateCode.NOTHING_TO_ESTIMATE.finding("the table has no row with several devices")


def _strategies(table: EpochTable) -> Iterator[Finding]:
    """Stated names that are none of dpscope's."""
    names = dict.fromkeys(row.strategy for row in table.rows)
    names.pop(UNSTATED, None)
    unknown = [name for name in names if name not in STRATEGIES]
    if unknown:
        named = _with_nearest(unknown, STRATEGIES)
        yield EstimateCode.UNKNOWN_STRATEGY.finding(f"unknown strategies: {named}")


def _with_nearest(unknown: Iterable[str], known: Iterable[str]) -> str:
    """Unknown names, each with the known one that it resembles."""
    candidates = list(known)
    names = []
    for name in unknown:
        shown = repr(name)
        near = nearest(name, candidates)
        if near:
            shown += f" (did you mean {near[0]}?)"
        names.append(shown)
    return ", ".join(names)


def _about(estimate: EpochEstimate, text: str) -> tuple[str, str]:
    """The place that a finding is about, and the setting there with what was seen of it."""
    where = place(estimate.study, estimate.run)
    setting = _setting(estimate)
    return where, f"{setting} {text}"


def _setting(estimate: EpochEstimate) -> str:
    return at(estimate.strategy, estimate.batch_size, estimate.devices, estimate.nodes)


def _added_unknown(table: EpochTable, estimates: Sequence[EpochEstimate]) -> Iterator[Finding]:
    """A finding for each study and run whose added time is unknown, with what its rows need."""
    batches = {row.setting: row.local_batch for row in table.rows}
    unknown = grouped(
        (place(estimate.study, estimate.run), estimate)
        for estimate in estimates
        if estimate.quantity == "communication_seconds" and not estimate.sound
    )
    for where, alike in unknown.items():
        by_reason = grouped((unsound.reason, _setting(unsound)) for unsound in alike)
        texts = []
        for reason, settings in by_reason.items():
            named = "; ".join(settings)
            texts.append(f"{named}: {reason}")
        reasons = "; ".join(texts)
        message = f"{where}: the added time is unknown: {reasons}"
        needed = _needed(alike, batches)
        yield EstimateCode.ADDED_TIME_UNKNOWN.finding(message, needed)


def _needed(unknown: Sequence[EpochEstimate], batches: Mapping[Setting, int | None]) -> str:
    """What would make added times known, given each row's batch per device; empty where only the
    reasons say it.
    """
    untimed = set()
    for estimate in unknown:
        if estimate.reason == UNKNOWN_BATCH:
            return "add a column batch_size_is with global or per_device"
        batch = batches[estimate.setting]
        if estimate.reason in (NO_SINGLE, no_single_time(batch)):
            untimed.add(batch)
    if None in untimed:
        return "time one device, too"
    if not untimed:
        return ""
    named = ", ".join(str(batch) for batch in sorted(untimed, key=lambda batch: batch or 0))
    # the last comma becomes a word
    named = " and ".join(named.rsplit(", ", 1))
    return f"time one device at batch {named}"


def _coarse(estimate: EpochEstimate) -> tuple[str, str] | None:
    """A sign, or more than a quarter of the added time, that the clock's resolution leaves open."""
    value, low, high = estimate.value, estimate.low, estimate.high
    if value is None or low is None:
        return None
    if not estimate.uncertain and not _is_wide(estimate, value, low):
        return None
    end = "unbounded"
    if high is not None:
        end = f"{high:.4g}"
    named = f"{estimate.quantity} {estimate.method}"
    bounds = f"[{low:.4g}, {end}]"
    return _about(estimate, f"{named} {value:.4g} {bounds}")


def _is_wide(estimate: EpochEstimate, value: float, low: float) -> bool:
    """Whether the bounds of an added time are far apart."""
    if estimate.quantity != "communication_seconds":
        return False
    high = estimate.high or 0.0
    widest = 2 * COARSE_SHARE * abs(value)
    return high - low > widest


def _superlinear(estimate: EpochEstimate) -> tuple[str, str] | None:
    """More than N times as fast on N devices, at any time within the bounds."""
    if estimate.quantity != "speedup" or not estimate.sound:
        return None
    least = estimate.low or 0.0
    if least <= estimate.devices:
        return None
    times = f"{estimate.value:.2f}x"
    return _about(estimate, f"{times} ({estimate.method})")


def _data_parallel(table: EpochTable) -> Iterator[Finding]:
    studies = []
    for row in table.rows:
        if traits_of(row.strategy).peer_copies and row.devices > 1:
            studies.append(place(row.study, None))
    if studies:
        names = ", ".join(dict.fromkeys(studies))
        yield EstimateCode.DP_IS_NO_ALL_REDUCE.finding(
            f"{names}: DataParallel broadcasts parameters and reduces gradients to device 0, 2 S a "
            "step for any N, with S the bytes of the parameters; it runs no all-reduce, so the ring volume 2(N-1)/N S does "
            "not describe it"
        )
