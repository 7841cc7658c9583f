"""`dpscope estimate`: estimates and findings of a table of times, or its predictions, in three
formats.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dpscope.analysis.costs.requested_places import requested_places
from dpscope.analysis.epoch_times import predict
from dpscope.analysis.epoch_times.epoch_time import (
    EpochTable,
    EpochTime,
    at,
    layout,
    place,
    significant,
)
from dpscope.analysis.epoch_times.estimates import EpochEstimate, epoch_estimates
from dpscope.analysis.epoch_times.findings import table_findings
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.analysis.text.text_table import Field, TextTable, render, render_findings, table_of
from dpscope.analysis.text.units import NA
from dpscope.profiling.records.finding import Finding, grouped
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.strategies import traits_of

EstimateFormat = Literal["table", "json", "markdown"]


class Answer(NamedTuple):
    """What is printed: the answer, a line for each study and run, tables, what their columns are, findings."""

    first: str
    tables: list[TextTable]
    legend: str
    findings: Sequence[Finding] = ()

    def markdown(self) -> str:
        tables = [render(table, "markdown") for table in self.tables]
        lines = [f"{line}\n" for line in self.first.splitlines()]
        parts = [*lines, *tables, f"{self.legend}\n"]
        return "\n".join([*parts, render_findings(self.findings)])


@dataclass(frozen=True)
class EstimateReport:
    """Results from a table of times."""

    __repr__ = short_repr

    estimates: list[EpochEstimate]
    findings: list[Finding]
    table: EpochTable


def estimate_report(table: EpochTable) -> EstimateReport:
    """Estimates and findings of a table."""
    estimates = epoch_estimates(table.rows)
    return EstimateReport(estimates, table_findings(table, estimates), table)


def run_estimate(path: Path, output_format: EstimateFormat) -> Answer | str:
    """The answer from a table, as text in a format for other programs; raises DpscopeError for a
    file that cannot be read.
    """
    report = estimate_report(read_epoch_times(path))
    if output_format == "json":
        return _json({"estimates": report.estimates}, report.findings)
    answer = _answer(report)
    return answer.markdown() if output_format == "markdown" else answer


def run_prediction(
    path: Path, devices: str, output_format: EstimateFormat
) -> tuple[Answer | str, bool]:
    """Predictions for counts and layouts such as ``8,2x8``, as `run_estimate`, and whether any time
    is known; raises DpscopeError also for other texts.
    """
    places = requested_places(devices, least=1)
    table = read_epoch_times(path)
    predicted = predict.predictions(table, places)
    any_known = any(row.value is not None for row in predicted)
    if output_format == "json":
        return _json({"predictions": predicted}), any_known
    tables = predict.prediction_tables(predicted)
    answer = Answer(predict.headline(predicted), tables, predict.legend(table))
    shown = answer.markdown() if output_format == "markdown" else answer
    return shown, any_known


def _json(
    records: Mapping[str, Sequence[NamedTuple]], findings: Sequence[Finding] | None = None
) -> str:
    content: dict[str, object] = {
        name: [row._asdict() for row in rows] for name, rows in records.items()
    }
    if findings is not None:
        content["findings"] = findings
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def estimate_markdown(report: EstimateReport) -> str:
    """Tables of the estimates, then the findings."""
    return _answer(report).markdown()


def _answer(report: EstimateReport) -> Answer:
    return Answer(headline(report), estimate_tables(report), legend(report.table), report.findings)


def estimate_tables(report: EstimateReport) -> list[TextTable]:
    """A row per setting, for each study and run."""
    fields = _overview(report.table)
    rows = report.table.rows
    unused = grouped((place(row.study, row.run), row) for row in _unused_rows(rows))
    tables = []
    for where, estimates in _by_place(report).items():
        settings = grouped((estimate.setting, estimate) for estimate in estimates)
        notes = []
        for row in unused.get(where, ()):
            setting = at(row.strategy, row.batch_size, row.devices, row.nodes)
            notes.append(f"{setting}: not used, as the one device of the others is single's")
        tables.append(table_of(where, fields, settings.values(), notes))
    return tables


def _by_place(report: EstimateReport) -> dict[str, list[EpochEstimate]]:
    return grouped((place(estimate.study, estimate.run), estimate) for estimate in report.estimates)


def _unused_rows(rows: Sequence[EpochTime]) -> Iterator[EpochTime]:
    """One device under another strategy than `single`, where that has a time at the batch, too."""

    def alike(row: EpochTime) -> tuple[object, ...]:
        return (row.study, row.run, row.model, row.dataset, row.batch_size)

    singles = set()
    others = []
    for row in rows:
        if row.devices > 1:
            continue
        if traits_of(row.strategy).baseline:
            singles.add(alike(row))
        else:
            others.append(row)
    for row in others:
        if alike(row) in singles:
            yield row


def headline(report: EstimateReport) -> str:
    """The largest speedup of each study and run, or that none is known: a line each."""
    lines = [_largest_speedup(*of_place) for of_place in _by_place(report).items()]
    if not lines:
        return "No speedup is known: the findings give the reasons."
    return "\n".join(lines)


def _largest_speedup(where: str, estimates: Sequence[EpochEstimate]) -> str:
    speedups = [estimate for estimate in estimates if estimate.quantity == "speedup"]
    sound = [estimate for estimate in speedups if estimate.sound]
    if not sound:
        why = _only_reason(speedups)
        return f"{where}: no speedup is known: {why}."
    best = max(sound, key=lambda speedup: speedup.value or 0.0)
    value = best.value or 0.0
    setting = at(best.strategy, best.batch_size, best.devices, best.nodes)
    scaling = best.method
    if scaling == "same_batch_size":
        scaling = "strong or weak: unknown"
    efficiency = f"{value / best.devices:.0%} efficient"
    if value > best.devices:
        efficiency += ", which data parallelism alone cannot give: check these times"
    return (
        f"{where}: {significant(value)}x one device is the largest speedup "
        f"({setting}, {scaling}), {efficiency}."
    )


def _only_reason(unknown: Sequence[EpochEstimate]) -> str:
    """Why values are unknown, in a line."""
    reasons = {estimate.reason for estimate in unknown}
    if len(reasons) > 1:
        return "the findings below say why, and --format json for each row"
    return reasons.pop()


_Setting = Sequence[EpochEstimate]  # the estimates of one row of a table


def _estimate(
    quantity: str, *methods: str, end: str = "value", scale: float = 1.0
) -> Callable[[_Setting], str]:
    """The first of these methods' estimates that a setting has, with a star for the one of an
    unknown kind of scaling.
    """

    def get(setting: _Setting) -> str:
        by_name = {(estimate.quantity, estimate.method): estimate for estimate in setting}
        estimate = next(
            by_name[quantity, method] for method in methods if (quantity, method) in by_name
        )
        text = _scaled(getattr(estimate, end), scale)
        if estimate.method == "same_batch_size":
            return f"{text}*"
        return text

    return get


def _scaled(value: float | None, scale: float) -> str:
    """A time in seconds in a table's unit, NA if unknown."""
    if value is None:
        return NA
    return significant(scale * value)


def _overview(table: EpochTable) -> tuple[Field, ...]:
    unit, scale = "s", 1.0
    if table.of_steps:
        unit, scale = "ms", 1e3
    seconds = {row.setting: row.epoch_seconds for row in table.rows}

    def measured(setting: _Setting) -> str:
        estimate = setting[0]
        return _scaled(seconds[estimate.setting], scale)

    def added(end: str) -> Callable[[_Setting], str]:
        return _estimate("communication_seconds", "same_local_batch", end=end, scale=scale)

    def between(setting: _Setting) -> str:
        low, high = added("low")(setting), added("high")(setting)
        return low if low == high else f"{low} to {high}"

    return (
        Field("strategy", lambda setting: setting[0].strategy),
        Field("batch", lambda setting: setting[0].batch_size),
        Field("N", lambda setting: layout(setting[0].devices, setting[0].nodes)),
        Field(f"time [{unit}]", measured),
        Field("strong", _estimate("speedup", "same_batch_size", "strong")),
        Field("weak", _estimate("speedup", "weak")),
        Field(f"compute [{unit}]", _estimate("compute_seconds", "same_local_batch", scale=scale)),
        Field(f"added [{unit}]", added("value")),
        Field(f"between [{unit}]", between),
        Field("GB/s", _estimate("effective_bandwidth", "same_local_batch")),
    )


def legend(table: EpochTable) -> str:
    """What the columns of estimates hold."""
    what = "a step" if table.of_steps else "an epoch"
    share = "step" if table.of_steps else "share of an epoch"
    return (
        f"N: devices, 4x1 for four nodes with one each. time: of {what}, measured. strong, weak: speedup at the same global "
        "batch, and at the same batch per device (*: one of the two, as the table does not state what its batch_size is). "
        f"compute: one device's time for its {share}. added: the extra wall time of {what}; between: its bounds by the "
        "resolution of the times. GB/s: bytes that a device must move, divided by the added time; not a link's rate. "
        f"{NA}: unknown; --format json gives each reason."
    )
