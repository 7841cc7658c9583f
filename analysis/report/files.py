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
from dpscope.profiling.store.ownership import (
    CAPTIONS_NAME,
    FIGURE_FORMATS,
    check_report_folder,
    marked_figures,
)

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
    measured: Sequence[str],
    whole: bool = True,
) -> None:
    """Write a report's `texts`, made from its figures, and its figures in these formats.

    Without formats, those in which an earlier report's figures lie in the folder are kept: their
    files are written again, to be of the same state as the page, but for those that were edited. If
    it is the `whole` report in the folder, other figures that dpscope wrote there are removed, and
    their captions are next to the figures, with what was `measured`, and what limits it.
    """
    from dpscope.analysis.figures.draw import captions, figure_files

    requested = [f"{name}.{one}" for name in figures for one in formats]
    check_report_folder(folder, [*requested, CAPTIONS_NAME] if requested else [])
    earlier = marked_figures(folder)
    embedded, drawn = figure_files(figures, formats or _formats_of(earlier))
    if drawn and whole:
        drawn[CAPTIONS_NAME] = captions(embedded, measured).encode()
    kept = {path.name for path in folder.glob("figures/*")} - {path.name for path in earlier}
    contents: dict[str, str | bytes] = {
        **texts(embedded),
        **{f"figures/{name}": drawn[name] for name in drawn.keys() - kept},
    }
    write_together({folder / name: content for name, content in contents.items()})
    stale = [path for path in earlier if path.name not in drawn] if whole else []
    for path in stale:
        path.unlink()


def _formats_of(figures: Sequence[Path]) -> list[str]:
    """Without that of their captions."""
    suffixes = {path.suffix for path in figures}
    return [suffix.removeprefix(".") for suffix in FIGURE_FORMATS if suffix in suffixes]
