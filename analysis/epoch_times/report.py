"""`dpscope estimate`: estimates and findings of a table of epoch times, as text, JSON, CSV or Markdown."""

import csv
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dpscope.analysis.epoch_times.estimates import EpochEstimate, estimates
from dpscope.analysis.epoch_times.findings import table_findings
from dpscope.analysis.epoch_times.table import EpochTable, read_epoch_times
from dpscope.analysis.epoch_times.wording import place
from dpscope.analysis.text.text_table import markdown_table
from dpscope.analysis.text.units import NA
from dpscope.profiling.records.finding import Finding

WIDTH = 80
EstimateFormat = Literal["table", "json", "csv", "markdown"]

_HEADINGS = ("by", "batch", "N", "strong", "weak", "compute [s]", "added [s]", "low [s]", "high [s]")
_WIDTHS = (7, 7, 5, 8, 7, 11, 9, 9, 9)

LEGEND = (
    "strong, weak: speedup at the same global batch, and at the same batch per device (* one of the two: the "
    "table does not say what its batch_size is); compute: one device's time for its share of an epoch; added: "
    "wall time an epoch takes beyond that (same_local_batch), low and high what the clock's resolution allows; "
    f"{NA} is unknown: the findings and the estimates themselves say why."
)


class EstimateReport(NamedTuple):
    """All that a table tells."""

    estimates: list[EpochEstimate]
    findings: list[Finding]


def estimate_report(table: EpochTable) -> EstimateReport:
    """Estimates and findings of a table."""
    found = estimates(table.rows)
    return EstimateReport(found, table_findings(table, found))


def run_estimate(table: Path, format: EstimateFormat) -> str:
    """Read the file and render what it tells; ends with a line break.

    `json` is an object with the lists estimates and findings; `csv` holds the estimates alone; `table` fits 80
    columns. Raises DpscopeError for a file that cannot be read.
    """
    report = estimate_report(read_epoch_times(table))
    return {"table": as_text, "json": as_json, "csv": as_csv, "markdown": as_markdown}[format](report)


def as_json(report: EstimateReport) -> str:
    content = {"estimates": [estimate._asdict() for estimate in report.estimates], "findings": report.findings}
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def as_csv(report: EstimateReport) -> str:
    """A row per estimate, unknown cells empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(EpochEstimate._fields)
    for estimate in report.estimates:
        writer.writerow(["true" if cell is True else "false" if cell is False else cell for cell in estimate])
    return text.getvalue()


def as_text(report: EstimateReport) -> str:
    """Plain text of at most 80 columns: sound values per setting, what is unknown and why, then findings."""
    return "\n".join([*overview_text(report.estimates), *finding_text(report.findings)]).rstrip() + "\n"


def overview_text(found: Sequence[EpochEstimate]) -> list[str]:
    """Lines of at most 80 columns: the sound values of each setting under their headings, and what these mean."""
    lines: list[str] = []
    for where, settings in _by_setting(found).items():
        lines += wrapped(where)
        lines.append(_aligned(_HEADINGS))
        lines += [_aligned(_overview_cells(cells)) for cells in settings]
        lines.append("")
    if not found:
        return [*lines, "No row with several devices: nothing to estimate.", ""]
    return [*lines, *wrapped(LEGEND), ""]


def finding_text(findings: Sequence[Finding]) -> list[str]:
    """Lines of at most 80 columns."""
    lines: list[str] = []
    for finding in findings:
        lines += wrapped(f"{finding.severity} {finding.code}: {finding.message}", "  ")
        lines += wrapped(f"-> {finding.next_step}", "     ", first="  ")
    return lines


def as_markdown(report: EstimateReport) -> str:
    """Tables of the sound estimates, then the findings."""
    lines = ["# Estimates from epoch times", ""]
    for where, table in overview_tables(report.estimates).items():
        lines += [f"## {where}", "", *table, ""]
    lines += ["## Findings", "", *finding_list(report.findings)]
    return "\n".join(lines).rstrip() + "\n"


def overview_tables(found: Sequence[EpochEstimate]) -> dict[str, list[str]]:
    """Markdown by study and run: a line per setting with its sound values."""
    return {
        where: markdown_table(_HEADINGS, [_overview_cells(cells) for cells in settings])
        for where, settings in _by_setting(found).items()
    }


def finding_list(findings: Sequence[Finding]) -> list[str]:
    """Markdown: a list item per finding."""
    if not findings:
        return ["None."]
    return [f"- **{one.severity}** `{one.code}`: {one.message}. Next: {one.next_step}." for one in findings]


def significant(value: float | None, digits: int = 4) -> str:
    """A value to so many significant digits, NA where unknown."""
    return NA if value is None else f"{value:.{digits}g}"


def _by_setting(found: Sequence[EpochEstimate]) -> dict[str, list[dict[tuple[str, str], EpochEstimate]]]:
    """Per study and run, in order: each setting's estimates by (quantity, method)."""
    settings: dict[tuple[object, ...], dict[tuple[str, str], EpochEstimate]] = {}
    for estimate in found:
        settings.setdefault(estimate[:5], {})[estimate.quantity, estimate.method] = estimate
    groups: dict[str, list[dict[tuple[str, str], EpochEstimate]]] = {}
    for cells in settings.values():
        first = next(iter(cells.values()))
        groups.setdefault(place(first.study, first.run), []).append(cells)
    return groups


def _overview_cells(cells: dict[tuple[str, str], EpochEstimate]) -> tuple[str, ...]:
    """One setting's line of the overview, under _HEADINGS."""
    added = cells["communication_seconds", "same_local_batch"]
    strong = significant(cells["speedup", "strong"].value)
    if ("speedup", "same_batch_size") in cells:
        strong = significant(cells["speedup", "same_batch_size"].value) + "*"
    return (
        added.strategy,
        str(added.batch_size),
        str(added.devices),
        strong,
        significant(cells["speedup", "weak"].value),
        significant(cells["compute_seconds", "same_local_batch"].value),
        significant(added.value),
        significant(added.low) if added.value is not None else "",
        significant(added.high) if added.value is not None else "",
    )


def _aligned(cells: Sequence[str]) -> str:
    """Cells under _WIDTHS, text left and numbers right; what is too long is cut."""
    fitted = [
        cell if len(cell) <= width else cell[: width - 1] + "~" for cell, width in zip(cells, _WIDTHS, strict=True)
    ]
    first, *others = zip(fitted, _WIDTHS, strict=True)
    return " ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()


def wrapped(text: str, indent: str = "", first: str = "") -> list[str]:
    lines = textwrap.wrap(
        " ".join(text.split()), WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False
    )
    return lines or [""]
