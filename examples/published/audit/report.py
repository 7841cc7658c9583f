"""Estimates and findings of a table of epoch times, with the audit of what was derived from it, in three formats."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from dpscope.analysis.epoch_times.estimates import EpochEstimate, estimates
from dpscope.analysis.epoch_times.findings import table_findings
from dpscope.analysis.epoch_times.report import (
    finding_list,
    finding_text,
    overview_tables,
    overview_text,
    significant,
    wrapped,
)
from dpscope.analysis.epoch_times.table import EpochTable
from dpscope.analysis.epoch_times.wording import place
from dpscope.analysis.text.text_table import markdown_table
from dpscope.profiling.records.finding import Finding
from examples.published.audit.findings import claim_findings
from examples.published.audit.groups import shortened
from examples.published.audit.table import Claim
from examples.published.audit.verdicts import ClaimAudit, audit_claims

OutputFormat = Literal["table", "json", "markdown"]


class AuditReport(NamedTuple):
    """All that a table tells, and all that is wrong with the claims made from it."""

    estimates: list[EpochEstimate]
    findings: list[Finding]
    claims: list[ClaimAudit]


def audit_report(table: EpochTable, claims: Sequence[Claim]) -> AuditReport:
    """Estimates, findings and the audit of every claim."""
    found, audited = estimates(table.rows), audit_claims(table.rows, claims)
    findings = table_findings(table, found) + claim_findings(audited)
    return AuditReport(found, findings, [one.audit for one in audited])


def render(report: AuditReport, format: OutputFormat) -> str:
    """The report as text of at most 80 columns, as JSON with the lists estimates, findings and claims, or as Markdown."""
    return {"table": _as_text, "json": _as_json, "markdown": _as_markdown}[format](report)


def _as_json(report: AuditReport) -> str:
    content = {
        "estimates": [estimate._asdict() for estimate in report.estimates],
        "findings": report.findings,
        "claims": [audit._asdict() for audit in report.claims],
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def _as_text(report: AuditReport) -> str:
    lines = [*overview_text(report.estimates), *wrapped(_verdicts(report.claims)), "", *finding_text(report.findings)]
    return "\n".join(lines).rstrip() + "\n"


def _as_markdown(report: AuditReport) -> str:
    lines = ["# Estimates from epoch times", ""]
    for where, table in overview_tables(report.estimates).items():
        lines += [f"## {where}", "", *table, ""]
    lines += ["## Claims", ""]
    for study in dict.fromkeys(audit.study for audit in report.claims):
        claimed = [audit for audit in report.claims if audit.study == study]
        lines += [f"### {place(study, None)}", "", *claim_table(claimed), ""]
    lines += ["## Findings", "", *finding_list(report.findings)]
    return "\n".join(lines).rstrip() + "\n"


def claim_table(audits: Sequence[ClaimAudit]) -> list[str]:
    """Markdown: each claim, what its own method gives, and what is sound."""
    headings = ("run", "claimed", "batch", "N", "printed", "by", "that gives", "sound", "verdict")
    return markdown_table(headings, [_claim_cells(audit) for audit in audits])


def _claim_cells(audit: ClaimAudit) -> tuple[str, ...]:
    unit = "" if audit.unit == "1" else f" {audit.unit}"
    sound = audit.reason if audit.sound_value is None else significant(audit.sound_value) + unit
    gives = significant(audit.reproduced, 6) + {"truncated": " (cut off)", "differs": " (differs)"}.get(
        audit.agreement, ""
    )
    return (
        audit.run or "",
        audit.quantity,
        "" if audit.batch_size is None else str(audit.batch_size),
        "" if audit.devices is None else str(audit.devices),
        shortened(audit.printed_value) + unit,
        f"`{audit.method}`",
        gives,
        sound,
        audit.verdict.replace("_", " "),
    )


def _verdicts(audits: Sequence[ClaimAudit]) -> str:
    counts = Counter(audit.verdict for audit in audits)
    reproduced = sum(audit.agreement in ("digits", "truncated") for audit in audits)
    return (
        f"{len(audits)} claims: {reproduced} are what their named method gives; {counts['holds']} hold, "
        f"{counts['does_not_hold']} do not, {counts['no_sound_value']} have no sound value."
    )
