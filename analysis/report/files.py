"""A report's files: texts and figures, written together; and the part of a report that a terminal
shows. Imports no plotting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.findings.facts import Verdict
from dpscope.analysis.text.text_table import TextTable, in_markdown
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.files import write_together
from dpscope.profiling.store.ownership import check_report_folder, marked_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpscope.analysis.figures.draw import PageFigure

DEFAULT_FORMATS: tuple[str, ...] = ()  # of the files in figures/; the page embeds its figures


@dataclass(frozen=True)
class PrintedReport:
    """`summary` is the first table (where a step goes), of which the first screen shows the rows of
    `first_cells`, and below it `first_notes`; `missing` states why values are NA.
    """

    setting: str
    verdict: Verdict
    summary: TextTable
    first_cells: tuple[str, ...]
    first_notes: tuple[str, ...]
    tables: tuple[TextTable, ...]
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """False if a finding is an error, such as a failed cell."""
        return not any(finding.severity == "error" for finding in self.findings)


def facts_in_markdown(verdict: Verdict) -> list[str]:
    """The setting, then each fact as an item of a list."""
    items = [f"- **{fact.label}** {in_markdown('; '.join(fact.lines))}" for fact in verdict.shown]
    return [f"{in_markdown(verdict.setting)}\n", *items]


def write_with_figures(
    folder: Path,
    figures: "Mapping[str, Figure]",
    formats: Sequence[str],
    texts: "Callable[[dict[str, PageFigure]], Mapping[str, str]]",
    whole: bool = True,
) -> None:
    """Write a report's `texts`, made from its figures, and its figures in these formats.

    Without formats, those in which an earlier report's figures lie in the folder are kept: their
    files are written again, to be of the same state as the page, but for those that were edited. If
    it is the `whole` report in the folder, other figures that dpscope wrote there are removed.
    """
    from dpscope.analysis.figures.draw import figure_files

    check_report_folder(folder, [f"{name}.{one}" for name in figures for one in formats])
    earlier = marked_figures(folder)
    if not formats:
        formats = sorted({path.suffix.removeprefix(".") for path in earlier})
    embedded, drawn = figure_files(figures, formats)
    kept = {path.name for path in folder.glob("figures/*")} - {path.name for path in earlier}
    contents: dict[str, str | bytes] = {
        **texts(embedded),
        **{f"figures/{name}": drawn[name] for name in drawn.keys() - kept},
    }
    write_together({folder / name: content for name, content in contents.items()})
    stale = [path for path in earlier if path.name not in drawn] if whole else []
    for path in stale:
        path.unlink()
