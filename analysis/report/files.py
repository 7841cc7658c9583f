"""A report's files: texts and figures, written together; and the part of a report that a terminal
shows. Imports no plotting.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.text.text_table import TextTable
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.files import write_together
from dpscope.profiling.store.ownership import check_report_folder, marked_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEFAULT_FORMATS = ("png",)  # of the files in figures/; the page embeds its figures


@dataclass(frozen=True)
class PrintedReport:
    """`answers` are a verdict's, each with its label; `warnings` precede them; `missing` states why
    values are NA.

    `summary` is the first table (where a step goes), `shortcuts` the second (measured against the
    shortcuts). `first_cells` are those whose rows a terminal shows of both.
    """

    setting: str
    warnings: tuple[str, ...]
    answers: tuple[tuple[str, str], ...]
    summary: TextTable
    shortcuts: TextTable | None
    first_cells: tuple[str, ...]
    tables: tuple[TextTable, ...]
    missing: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        """False if a finding is an error, such as a failed cell."""
        return not any(finding.severity == "error" for finding in self.findings)


def write_with_figures(
    folder: Path,
    figures: "Mapping[str, Figure]",
    formats: Sequence[str],
    texts: Callable[[dict[str, str]], Mapping[str, str]],
    whole: bool = True,
) -> None:
    """Write a report's `texts`, made from its figures' SVG, and its figures in these formats.

    If it is the `whole` report in the folder, other figures that dpscope wrote there are removed.
    """
    from dpscope.analysis.figures.draw import figure_files

    check_report_folder(folder, [f"{name}.{one}" for name in figures for one in formats])
    svg, drawn = figure_files(figures, formats)
    contents: dict[str, str | bytes] = {
        **texts(svg),
        **{f"figures/{name}": content for name, content in drawn.items()},
    }
    write_together({folder / name: content for name, content in contents.items()})
    stale = [path for path in marked_figures(folder) if path.name not in drawn] if whole else []
    for path in stale:
        path.unlink()
