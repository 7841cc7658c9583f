"""`dpscope estimate`: estimates, scaling laws, findings and audited claims of a table of epoch times, in four formats."""

import csv
import io
import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from dpscope.analysis.epoch_times.claim_findings import claim_findings, shortened
from dpscope.analysis.epoch_times.claims import Claim, ClaimAudit, audit_claims, read_claims
from dpscope.analysis.epoch_times.estimates import EpochEstimate, EpochLaw, estimates, law_fits, misuse_sentence
from dpscope.analysis.epoch_times.findings import table_findings
from dpscope.analysis.epoch_times.table import EpochTable, listed, place, read_epoch_times
from dpscope.analysis.text.text_table import markdown_table
from dpscope.analysis.text.units import NA
from dpscope.profiling.records.finding import Finding, counted

WIDTH = 80
EstimateFormat = Literal["table", "json", "csv", "markdown"]

_HEADINGS = ("by", "batch", "N", "strong", "weak", "compute [s]", "added [s]", "low [s]", "high [s]")
_WIDTHS = (7, 7, 5, 8, 7, 11, 9, 9, 9)

LEGEND = (
    "strong, weak: speedup at the same global batch, and at the same batch per device (* one of the two: the "
    "table does not say what its batch_size is); compute: one device's time for its share of an epoch; added: "
    "further wall time of an epoch (same_local_batch); low, high: its bounds at the clock's resolution; "
    f"{NA}: unknown, for a reason given in the findings and the estimates."
)


class EstimateReport(NamedTuple):
    """Results from a table of epoch times; `claims` is None if there is no table of claims."""

    estimates: list[EpochEstimate]
    laws: list[EpochLaw]
    findings: list[Finding]
    claims: list[ClaimAudit] | None = None


def estimate_report(table: EpochTable, claims: Sequence[Claim] | None = None) -> EstimateReport:
    """Estimates, laws and findings of a table, and an audit of values derived from it."""
    found = estimates(table.rows)
    audited = audit_claims(table.rows, claims or [])
    return EstimateReport(
        found,
        law_fits(table.rows, found),
        table_findings(table, found) + claim_findings(audited),
        None if claims is None else [one.audit for one in audited],
    )


def run_estimate(table: Path, format: EstimateFormat, claims: Path | None = None) -> str:
    """Read the files and render the report; ends with a line break.

    `json` is an object with the lists estimates, laws, findings and, with `claims`, claims; `csv` holds the estimates, or with
    `claims` the audited claims; `table` fits 80 columns. Raises DpscopeError for a file that cannot be read.
    """
    report = estimate_report(read_epoch_times(table), None if claims is None else read_claims(claims))
    return {"table": as_text, "json": as_json, "csv": as_csv, "markdown": as_markdown}[format](report)


def as_json(report: EstimateReport) -> str:
    content = {
        "estimates": [one._asdict() for one in report.estimates],
        "laws": [one._asdict() for one in report.laws],
        "findings": report.findings,
    }
    if report.claims is not None:
        content["claims"] = [one._asdict() for one in report.claims]
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def as_csv(report: EstimateReport) -> str:
    """One row per audited claim if there are claims, or else per estimate; unknown cells are empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows: Iterable[tuple[object, ...]]
    rows, heading = report.estimates, EpochEstimate._fields
    if report.claims is not None:
        rows, heading = report.claims, ClaimAudit._fields
    writer.writerow(heading)
    for row in rows:
        writer.writerow(["true" if cell is True else "false" if cell is False else cell for cell in row])
    return text.getvalue()


def as_text(report: EstimateReport) -> str:
    """Plain text of at most 80 columns: sound values per setting, laws, findings."""
    lines = _overview_text(report.estimates, report.laws)
    if report.claims is not None:
        counts = Counter(audit.verdict for audit in report.claims)
        reproduced = sum(audit.agreement in ("digits", "truncated") for audit in report.claims)
        verdicts = (
            f"{counted(len(report.claims), 'claim')}: {reproduced} agree with their stated method; {counts['holds']} hold, "
            f"{counts['does_not_hold']} do not, {counts['no_sound_value']} have no sound value."
        )
        lines += [*wrapped(verdicts), ""]
    for finding in report.findings:
        lines += wrapped(f"{finding.severity} {finding.code}: {finding.message}", "  ")
        lines += wrapped(f"-> {finding.next_step}", "     ", first="  ")
    return "\n".join(lines).rstrip() + "\n"


def _overview_text(found: Sequence[EpochEstimate], laws: Sequence[EpochLaw]) -> list[str]:
    lines: list[str] = []
    for where, settings in _by_setting(found).items():
        lines += wrapped(where)
        lines.append(_aligned(_HEADINGS))
        lines += [_aligned(_overview_cells(cells)) for cells in settings]
        series = [law for law in laws if place(law.study, law.run) == where]
        misuse = list(filter(None, [misuse_sentence(series)]))
        sentences = (*_bandwidths(settings), *map(_law_sentence, series), *misuse)
        lines += [line for sentence in sentences for line in wrapped(sentence, "  ")]
        lines.append("")
    if not found:
        return [*lines, "No row with several devices: nothing to estimate.", ""]
    return [*lines, *wrapped(LEGEND), ""]


def _bandwidths(settings: Sequence[dict[tuple[str, str], EpochEstimate]]) -> list[str]:
    known = [cells["effective_bandwidth", "same_local_batch"] for cells in settings]
    parts = [
        f"{significant(one.value, 3)} GB/s ({one.strategy}, batch {one.batch_size}, {counted(one.devices, 'device')})"
        for one in known
        if one.value is not None
    ]
    return [f"Bytes moved per added second (not a link's rate): {listed(parts)}."] if parts else []


def _law_sentence(law: EpochLaw) -> str:
    parameters, predicts = _law_cells(law)[4], _law_cells(law)[6]
    counts = listed([f"{speedup:.3g}x on {devices}" for devices, speedup in law.speedups.items()])
    return f"{law.strategy}, batch_size {law.batch_size}, {law.scaling} scaling, {counts}: {parameters}; {predicts}."


def law_table(laws: Sequence[EpochLaw]) -> list[str]:
    """Markdown: the laws of one study, all of one kind of scaling."""
    if not laws:
        return []
    headings = ("run", "by", "batch_size", "N measured", f"law of {laws[0].scaling} scaling", "worst error", "predicts")
    return markdown_table(headings, [_law_cells(law) for law in laws])


def _law_cells(law: EpochLaw) -> tuple[str, ...]:
    parameters = ", ".join(f"{name} {significant(value, 3)}" for name, value in law.parameters.items())
    known = law.predicted_speedup is not None and not law.note
    return (
        law.run or "",
        law.strategy,
        str(law.batch_size),
        ", ".join(map(str, law.speedups)),
        f"{law.law}: {parameters}",
        f"{law.worst_relative_error:.0%}" if len(law.speedups) > 1 else "",
        f"{significant(law.predicted_speedup, 3)}x on {law.predicted_devices}" if known else law.note,
    )


def claim_table(audits: Sequence[ClaimAudit]) -> list[str]:
    """Markdown: each claim, what its method gives, and the sound value."""
    headings = ("run", "claimed", "batch", "N", "printed", "method", "gives", "sound", "verdict")
    return markdown_table(headings, [_claim_cells(audit) for audit in audits])


def _claim_cells(audit: ClaimAudit) -> tuple[str, ...]:
    unit = "" if audit.unit == "1" else f" {audit.unit}"
    differs = {"truncated": " (truncated)", "differs": " (differs)"}.get(audit.agreement, "")
    return (
        audit.run or "",
        audit.quantity,
        "" if audit.batch_size is None else str(audit.batch_size),
        "" if audit.devices is None else str(audit.devices),
        shortened(audit.printed_value) + unit,
        f"`{audit.method}`",
        significant(audit.reproduced, 6) + differs,
        audit.reason if audit.sound_value is None else significant(audit.sound_value) + unit,
        audit.verdict.replace("_", " "),
    )


def as_markdown(report: EstimateReport) -> str:
    """Tables of the sound estimates, then the findings."""
    lines = ["# Estimates from epoch times", ""]
    for where, table in overview_tables(report.estimates).items():
        lines += [f"## {where}", "", *table, ""]
        series = [law for law in report.laws if place(law.study, law.run) == where]
        lines += [*law_table(series), ""] if series else []
    claims = report.claims or []
    for study in dict.fromkeys(audit.study for audit in claims):
        claimed = [audit for audit in claims if audit.study == study]
        lines += [f"## Claims of {place(study, None)}", "", *claim_table(claimed), ""]
    lines += ["## Findings", "", *finding_list(report.findings)]
    return "\n".join(lines).rstrip() + "\n"


def overview_tables(found: Sequence[EpochEstimate]) -> dict[str, list[str]]:
    """Markdown by study and run: one line per setting with its sound values."""
    return {
        where: markdown_table(_HEADINGS, [_overview_cells(cells) for cells in settings])
        for where, settings in _by_setting(found).items()
    }


def finding_list(findings: Sequence[Finding]) -> list[str]:
    """Markdown: one list item per finding."""
    if not findings:
        return ["None."]
    return [f"- **{one.severity}** `{one.code}`: {one.message}. Next: {one.next_step}." for one in findings]


def significant(value: float | None, digits: int = 4) -> str:
    """A value with so many significant digits, NA if unknown."""
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
    """One setting's cells under _HEADINGS."""
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
    """Cells padded to _WIDTHS, the first one left-aligned; long cells are cut."""
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
