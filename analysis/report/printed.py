"""What a terminal shows of a report. It is kept beside the report: one that is current is printed without being made again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.finding import Finding

MOST_ROWS, MOST_ANSWERED = 6, 9  # of a terminal's first table; of it where the answers speak of more cells


@dataclass(frozen=True)
class PrintedReport:
    """`answers` are the three of a run, `caveat` comes before them, `summary` is the first table, `missing` why values are NA.

    `first_rows` are the rows of `summary` that a reader needs first, by number.
    """

    headline: str
    setting: str
    caveat: str | None
    answers: tuple[str, str, str]
    summary: TextTable
    first_rows: tuple[int, ...]
    tables: tuple[TextTable, ...]
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """False when a cell failed or an error finding stands against the numbers."""
        return not any(finding.severity == "error" for finding in self.findings)


def first_rows(
    cells: Sequence[tuple[str, str, int, int]], answered: Collection[str], variants: Collection[str] = ()
) -> tuple[int, ...]:
    """The rows of a run's first table, by number, that a terminal shows: those of which the answers speak, and a few more.

    `cells` are its rows: name, strategy, devices, batch per device. `answered` are the cells of the answers, shown with one
    device's at their batch. Then come other cells, those that are no `variants` first, and last DDP on one device, which says
    what the wrapper costs and nothing of several devices.
    """
    batches = {batch for cell, _, _, batch in cells if cell in answered}

    def rank(index: int) -> int:
        cell, strategy, devices, batch = cells[index]
        if cell in answered or (cell == f"single-d1-b{batch}" and batch in batches):
            return 0
        return 3 if devices == 1 and strategy != "single" else 2 if cell in variants else 1

    ranked = sorted(range(len(cells)), key=rank)
    most = min(MOST_ANSWERED, max(MOST_ROWS, sum(rank(index) == 0 for index in ranked)))
    return tuple(sorted(ranked[:most]))
