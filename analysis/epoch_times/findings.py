"""Findings about a table of times: what is missing or easily misread. Each is reported once per
study and run.
"""

from collections.abc import Iterator, Mapping, Sequence

from dpscope.analysis.epoch_times.epoch_time import EpochTable, Setting, at, place
from dpscope.analysis.epoch_times.estimates import UNKNOWN_BATCH, EpochEstimate, no_single_time
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding, grouped
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import nearest

COARSE_SHARE = 0.25  # of a value: larger bounds by the clock's resolution are reported


def table_findings(table: EpochTable, estimates: Sequence[EpochEstimate]) -> list[Finding]:
    """Findings about a table and its estimates."""
    return [
        *_columns(table),
        *_added_unknown(table, estimates),
        *_reported(
            EstimateCode.CLOCK_TOO_COARSE,
            "uncertain at the clock's resolution",
            map(_coarse, estimates),
        ),
        *_reported(
            EstimateCode.SUPERLINEAR_SPEEDUP,
            "more than N times as fast on N devices",
            map(_superlinear, estimates),
        ),
        *_data_parallel(table),
    ]


def _reported(
    code: EstimateCode, what: str, found: Iterator[tuple[str, str] | None]
) -> Iterator[Finding]:
    """A finding for each study and run with anything found in it."""
    for where, texts in grouped(finding for finding in found if finding is not None).items():
        yield code.finding(f"{where}: {what}: {'; '.join(texts)}")


def _columns(table: EpochTable) -> Iterator[Finding]:
    if table.unknown_columns:
        meant = {name: nearest(name, table.absent_columns) for name in table.unknown_columns}
        names = [
            f"{name!r}" + (f" (did you mean {near[0]}?)" if near else "")
            for name, near in meant.items()
        ]
        yield EstimateCode.UNKNOWN_COLUMN.finding(f"unknown columns, not used: {', '.join(names)}")
    if not any(row.devices > 1 for row in table.rows):
        yield EstimateCode.NOTHING_TO_ESTIMATE.finding("the table has no row with several devices")


def _about(estimate: EpochEstimate, text: str) -> tuple[str, str]:
    return place(estimate.study, estimate.run), f"{_setting(estimate)}{text}"


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
            texts.append(f"{'; '.join(settings)}: {reason}")
        yield EstimateCode.ADDED_TIME_UNKNOWN.finding(
            f"{where}: the added time is unknown: {'; '.join(texts)}", _needed(alike, batches)
        )


def _needed(unknown: Sequence[EpochEstimate], batches: Mapping[Setting, int | None]) -> str:
    """What would make added times known, given each row's batch per device; empty where only the
    reasons say it.
    """
    untimed = set()
    for estimate in unknown:
        if estimate.reason == UNKNOWN_BATCH:
            return "add a column batch_size_is with global or per_device"
        batch = batches[estimate.setting]
        if batch is not None and estimate.reason == no_single_time(batch):
            untimed.add(batch)
    if not untimed:
        return ""
    named = ", ".join(map(str, sorted(untimed)))
    # the last comma becomes a word
    named = " and ".join(named.rsplit(", ", 1))
    return f"time one device at batch {named}"


def _coarse(estimate: EpochEstimate) -> tuple[str, str] | None:
    """A sign, or more than a quarter of the added time, that the clock's resolution leaves open."""
    if estimate.value is None or estimate.low is None:
        return None
    width = (estimate.high or 0.0) - estimate.low
    is_wide = estimate.quantity == "communication_seconds" and width > 2 * COARSE_SHARE * abs(
        estimate.value
    )
    if not estimate.uncertain and not is_wide:
        return None
    high = "unbounded" if estimate.high is None else f"{estimate.high:.4g}"
    return _about(
        estimate,
        f" {estimate.quantity} {estimate.method} {estimate.value:.4g} [{estimate.low:.4g}, {high}]",
    )


def _superlinear(estimate: EpochEstimate) -> tuple[str, str] | None:
    is_more = (
        estimate.quantity == "speedup"
        and estimate.sound
        and (estimate.low or 0.0) > estimate.devices
    )
    return _about(estimate, f" {estimate.value:.2f}x ({estimate.method})") if is_more else None


def _data_parallel(table: EpochTable) -> Iterator[Finding]:
    copying = (row for row in table.rows if traits_of(row.strategy).peer_copies and row.devices > 1)
    if studies := dict.fromkeys(place(row.study, None) for row in copying):
        yield EstimateCode.DP_IS_NO_ALL_REDUCE.finding(
            f"{', '.join(studies)}: DataParallel broadcasts parameters and reduces gradients to device 0, 2 S a "
            "step for any N, with S the bytes of the parameters; it runs no all-reduce, so the ring volume 2(N-1)/N S does "
            "not describe it"
        )
