"""What a terminal shows of a report. It is kept beside the report: one that is current is printed without being made again."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.strategies import traits_of

MOST_ROWS, MOST_ANSWERED = 6, 9  # of a terminal's first table: if the verdict speaks of no cell, and if it does


@dataclass(frozen=True)
class PrintedReport:
    """`answers` are a verdict's, each with its label, `warnings` come before them, `missing` says why values are NA.

    `summary` is the first table, where a step goes, and `shortcuts` the second, measured against the shortcuts. `first_rows` are
    the rows of `summary` that a reader needs first, by number.
    """

    setting: str
    warnings: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    summary: TextTable
    shortcuts: TextTable | None
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
    """The rows of a run's first table, by number, that a terminal shows: the cells that the verdict speaks of.

    `cells` are its rows: name, strategy, devices, batch per device. `answered` are the cells of the verdict, shown with one
    device's at their batch, MOST_ANSWERED at most. Without any, other cells are shown: those that are no `variants` first, and
    last DDP on one device, which shows what the wrapper costs and nothing of several devices.
    """
    batches = {batch for cell, _, _, batch in cells if cell in answered}

    def rank(index: int) -> int:
        cell, strategy, devices, batch = cells[index]
        if cell in answered or (cell == f"single-d1-b{batch}" and batch in batches):
            return 0
        return 3 if devices == 1 and not traits_of(strategy).baseline else 2 if cell in variants else 1

    ranked = sorted(range(len(cells)), key=rank)
    told = sum(rank(index) == 0 for index in ranked)
    return tuple(sorted(ranked[: min(MOST_ANSWERED, told) or MOST_ROWS]))
