"""What a terminal shows of a report. It is kept beside the report: one that is current is printed without being made again."""

from dataclasses import dataclass

from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.finding import Finding


@dataclass(frozen=True)
class PrintedReport:
    """`answers` are the three of a run, `caveat` comes before them, `summary` is the first table, `missing` why values are NA."""

    headline: str
    setting: str
    caveat: str | None
    answers: tuple[str, str, str]
    summary: TextTable
    tables: tuple[TextTable, ...]
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """False when a cell failed or an error finding stands against the numbers."""
        return not any(finding.severity == "error" for finding in self.findings)
