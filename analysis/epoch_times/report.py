"""`dpscope estimate`: estimates, scaling laws, findings and audited claims of a table of epoch times, in four formats."""

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dpscope.analysis.epoch_times.epoch_time import layout, place
from dpscope.analysis.epoch_times.estimates import EpochEstimate, EpochLaw, epoch_estimates, law_fits, misuse_sentence
from dpscope.analysis.epoch_times.findings import by_run, table_findings
from dpscope.analysis.epoch_times.predict import Predicted, prediction_table, predictions
from dpscope.analysis.epoch_times.table import EpochTable, read_epoch_times
from dpscope.analysis.text.text_table import TextTable, markdown_table, render
from dpscope.analysis.text.units import NA
from dpscope.profiling.records.finding import Finding, counted, listed
from dpscope.profiling.records.matrix import parse_counts_and_layouts, parse_layout
from dpscope.profiling.store.errors import DpscopeError

WIDTH = 80
EstimateFormat = Literal["table", "json", "csv", "markdown"]

_HEADINGS = ("by", "batch", "N", "strong", "weak", "compute [s]", "added [s]", "low [s]", "high [s]")
_WIDTHS = (7, 7, 5, 8, 7, 11, 9, 9, 9)

LEGEND = (
    "strong, weak: speedup at the same global batch, and at the same batch per device (* one of the two: the "
    "table does not say what its batch_size is); compute: one device's time for its share of an epoch; added: "
    "further wall time of an epoch (same_local_batch); N: devices, 4x1 for four nodes with one each; "
    "low, high: bounds of added at the clock's resolution; "
    f"{NA}: unknown, for a reason given in the findings and the estimates."
)


class EstimateReport(NamedTuple):
    """Results from a table of epoch times."""

    estimates: list[EpochEstimate]
    laws: list[EpochLaw]
    findings: list[Finding]


def estimate_report(table: EpochTable) -> EstimateReport:
    """Estimates, laws and findings of a table."""
    found = epoch_estimates(table.rows)
    return EstimateReport(found, law_fits(table.rows, found), table_findings(table, found))


def run_estimate(table: Path, format: EstimateFormat) -> str:
    """Read the file and render the report; ends with a line break.

    `json` is an object with the lists estimates, laws and findings; `csv` holds the estimates; `table` fits 80 columns. Raises
    DpscopeError for a file that cannot be read.
    """
    report = estimate_report(read_epoch_times(table))
    return {"table": as_text, "json": as_json, "csv": as_csv, "markdown": estimate_markdown}[format](report)


def run_prediction(table: Path, devices: str, format: EstimateFormat) -> str | TextTable:
    """Predictions for counts and layouts such as ``8,2x8``: text in a format for other programs, else a table.

    Raises DpscopeError for a file that cannot be read and for other texts.
    """
    try:
        counts, layouts = parse_counts_and_layouts(devices)
        if 0 in counts:
            raise ValueError("0 is no number of devices")
    except ValueError as error:
        raise DpscopeError(
            f"--predict {devices}: {error}; give device counts or layouts, such as 8,16 or 2x8"
        ) from error
    placed = [(one.devices, one.nodes) for one in map(parse_layout, layouts)]
    predicted = predictions(read_epoch_times(table), [*((count, None) for count in counts), *placed])
    records = [one._asdict() for one in predicted]
    if format == "json":
        return msgspec.json.format(msgspec.json.encode({"predictions": records}), indent=2).decode()
    if format == "csv":
        return _csv(records, Predicted._fields)
    return prediction_table(predicted) if format == "table" else render(prediction_table(predicted), format)


def as_json(report: EstimateReport) -> str:
    content = {
        "estimates": [one._asdict() for one in report.estimates],
        "laws": [one._asdict() for one in report.laws],
        "findings": report.findings,
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def as_csv(report: EstimateReport) -> str:
    """One row per estimate; unknown cells are empty."""
    rows: list[dict[str, object]] = [{**one._asdict(), "sound": str(one.sound).lower()} for one in report.estimates]
    return _csv(rows, EpochEstimate._fields)


def _csv(rows: Sequence[Mapping[str, object]], columns: Sequence[str]) -> str:
    """The columns of the first row, else `columns`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0] if rows else columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_text(report: EstimateReport) -> str:
    """Plain text of at most 80 columns: sound values per setting, laws, findings."""
    lines: list[str] = []
    laws = dict(by_run(report.laws))
    for where, settings in _by_setting(report.estimates).items():
        lines += [*_wrapped(where), *map(_aligned, (_HEADINGS, *map(_overview_cells, settings)))]
        series = laws.get(where, [])
        sentences = (_bandwidths(settings), *map(_law_sentence, series), misuse_sentence(series))
        lines += [line for sentence in sentences if sentence for line in _wrapped(sentence, "  ")]
        lines.append("")
    overview = LEGEND if report.estimates else "No row with several devices: nothing to estimate."
    lines += [*_wrapped(overview), ""]
    for finding in report.findings:
        lines += _wrapped(f"{finding.severity} {finding.code}: {finding.message}", "  ")
        lines += _wrapped(f"-> {finding.next_step}", "     ", first="  ")
    return "\n".join(lines).rstrip() + "\n"


def _by_setting(found: Sequence[EpochEstimate]) -> dict[str, list[dict[tuple[str, str], EpochEstimate]]]:
    """Per study and run, in order: each setting's estimates by (quantity, method)."""
    groups: dict[str, dict[tuple[object, ...], dict[tuple[str, str], EpochEstimate]]] = {}
    for one in found:
        settings = groups.setdefault(place(one.study, one.run), {})
        settings.setdefault(one.setting, {})[one.quantity, one.method] = one
    return {where: list(settings.values()) for where, settings in groups.items()}


def _overview_cells(cells: dict[tuple[str, str], EpochEstimate]) -> tuple[str, ...]:
    """One setting's cells under _HEADINGS."""
    added = cells["communication_seconds", "same_local_batch"]
    strong = significant(cells["speedup", "strong"].value)
    if ("speedup", "same_batch_size") in cells:
        strong = significant(cells["speedup", "same_batch_size"].value) + "*"
    return (
        added.strategy,
        str(added.batch_size),
        layout(added.devices, added.nodes),
        strong,
        significant(cells["speedup", "weak"].value),
        significant(cells["compute_seconds", "same_local_batch"].value),
        significant(added.value),
        *("" if added.value is None else significant(bound) for bound in (added.low, added.high)),
    )


def _aligned(cells: Sequence[str]) -> str:
    """Cells padded to _WIDTHS, the first one left-aligned; long cells are cut."""
    pairs = zip(cells, _WIDTHS, strict=True)
    first, *others = (cell if len(cell) <= width else cell[: width - 1] + "~" for cell, width in pairs)
    padded = (cell.rjust(width) for cell, width in zip(others, _WIDTHS[1:], strict=True))
    return " ".join([first.ljust(_WIDTHS[0]), *padded]).rstrip()


def _wrapped(text: str, indent: str = "", first: str = "") -> list[str]:
    lines = textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
    )
    return lines or [""]


def _bandwidths(settings: Sequence[dict[tuple[str, str], EpochEstimate]]) -> str:
    known = [cells["effective_bandwidth", "same_local_batch"] for cells in settings]
    parts = [
        f"{significant(one.value, 3)} GB/s ({one.strategy}, batch {one.batch_size}, {_devices(one)})"
        for one in known
        if one.value is not None
    ]
    return f"Bytes moved per added second (not a link's rate): {listed(parts)}." if parts else ""


def _devices(one: EpochEstimate) -> str:
    placed = f" on {counted(one.nodes, 'node')}" if one.nodes is not None else ""
    return f"{counted(one.devices, 'device')}{placed}"


def _law_sentence(law: EpochLaw) -> str:
    *_, parameters, _, predicts = _law_cells(law)
    counts = listed([f"{speedup:.3g}x on {devices}" for devices, speedup in law.speedups.items()])
    sparse = f", {law.devices_per_node} on each node" if law.devices_per_node is not None else ""
    return f"{law.strategy}, batch_size {law.batch_size}{sparse}, {law.scaling} scaling, {counts}: {parameters}; {predicts}."


def _law_cells(law: EpochLaw) -> tuple[str, ...]:
    parameters = ", ".join(f"{name} {significant(value, 3)}" for name, value in law.parameters.items())
    known = law.predicted_speedup is not None and not law.note
    return (
        law.run or "",
        law.strategy,
        str(law.batch_size),
        ", ".join(map(str, law.speedups)) + (f" ({law.devices_per_node} a node)" if law.devices_per_node else ""),
        f"{law.law}: {parameters}",
        f"{law.worst_relative_error:.0%}" if len(law.speedups) > 1 else "",
        f"{significant(law.predicted_speedup, 3)}x on {law.predicted_devices}" if known else law.note,
    )


def estimate_markdown(report: EstimateReport) -> str:
    """Tables of the sound estimates, then the findings."""
    lines = ["# Estimates from epoch times", ""]
    laws = dict(by_run(report.laws))
    for where, table in overview_tables(report.estimates).items():
        lines += [f"## {where}", "", *table, ""]
        lines += [*law_table(laws[where]), ""] if where in laws else []
    lines += ["## Findings", "", *finding_list(report.findings)]
    return "\n".join(lines).rstrip() + "\n"


def overview_tables(found: Sequence[EpochEstimate]) -> dict[str, list[str]]:
    """Markdown by study and run: one line per setting with its sound values."""
    return {where: markdown_table(_HEADINGS, [*map(_overview_cells, one)]) for where, one in _by_setting(found).items()}


def law_table(laws: Sequence[EpochLaw]) -> list[str]:
    """Markdown: the laws of one study, all of one kind of scaling."""
    if not laws:
        return []
    headings = ("run", "by", "batch_size", "N measured", f"law of {laws[0].scaling} scaling", "worst error", "predicts")
    return markdown_table(headings, [_law_cells(law) for law in laws])


def finding_list(findings: Sequence[Finding]) -> list[str]:
    """Markdown: one list item per finding."""
    lines = [f"- **{one.severity}** `{one.code}`: {one.message}. Next: {one.next_step}." for one in findings]
    return lines or ["None."]


def significant(value: float | None, digits: int = 4) -> str:
    """A value with so many significant digits, NA if unknown."""
    return NA if value is None else f"{value:.{digits}g}"
