"""The report of a loaded run: its tables in reading order, and its folder with comparison.csv and
.md, page and figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.comparison import compare
from dpscope.analysis.figures.efficiency import Efficiencies
from dpscope.analysis.findings.facts import Verdict
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.findings.verdict import measured_where, run_verdict, validity
from dpscope.analysis.report import page as pages
from dpscope.analysis.report.comparison_tables import comparison_csv, first_cells, slowed_notes
from dpscope.analysis.report.files import (
    DEFAULT_FORMATS,
    PrintedReport,
    facts_in_markdown,
    write_with_figures,
)
from dpscope.analysis.report.nccl_tables import run_chapter
from dpscope.analysis.report.results import Results
from dpscope.analysis.report.sections import SECTIONS
from dpscope.analysis.report.setting import environment_facts, setting_of
from dpscope.analysis.report.timeline import timeline_views
from dpscope.analysis.report.views import FIRST, STUDY, VIEWS, tables_of
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import (
    MOST_HEADINGS,
    TextTable,
    in_markdown,
    reasons,
    render,
    render_findings,
)
from dpscope.profiling.machine.gpu_speed import StatedFlops
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpscope.analysis.figures.draw import PageFigure


@dataclass(frozen=True)
class Report(Results):
    """What is shown of a run: each part is computed once, when a renderer first reads it."""

    __repr__ = short_repr

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """All that is concluded from the run."""
        return (*conclusions(self.run, self.comparison), *self.nccl.findings)

    @cached_property
    def setting(self) -> str:
        """What was measured and where."""
        return setting_of(self.run)

    @cached_property
    def verdict(self) -> Verdict:
        """The four answers."""
        return run_verdict(self.run, self.comparison)

    @cached_property
    def first(self) -> Mapping[str, TextTable]:
        """The tables that are shown first: where a step goes, measured against the shortcuts."""
        return tables_of(self, FIRST)

    @cached_property
    def tables(self) -> Mapping[str, TextTable]:
        """All others, by name, in reading order."""
        return tables_of(self, *(section.name for section in SECTIONS))

    @cached_property
    def study(self) -> Mapping[str, TextTable]:
        """The tables of data-parallel studies, each with what it is of and what limits it, since people
        take single tables into their texts; traces alone hold no epochs.
        """
        if self.run.recorded is None:
            return {}
        where = measured_where(self.run)
        labels = ", ".join(fact.label for fact in self.verdict.limits)
        if labels:
            where = f"{where} ({labels}: see the notes)"
        tables = {}
        for name, table in tables_of(self, STUDY).items():
            title = f"{table.title}: {where}"
            notes = (*table.notes, *self.measured)
            tables[name] = replace(table, title=title, notes=notes)
        return tables

    @property
    def measured(self) -> list[str]:
        """What stands with every figure and table of a text: what was measured and where, and what
        limits it.
        """
        limits = [fact.text for fact in self.verdict.limits]
        return [self.setting, *self._validity, *limits]

    @property
    def _validity(self) -> list[str]:
        """What a run is not valid for, if anything; the setting of traces has it."""
        if self.run.recorded is None:
            return []
        invalid = validity(self.run, self.comparison).removesuffix(".")
        return list(filter(None, [invalid]))

    def section(self, name: str) -> dict[str, TextTable]:
        """The tables of a section of the page."""
        named = [view.name for view in VIEWS if view.section == name]
        return {name: self.tables[name] for name in named if name in self.tables}

    @cached_property
    def printed(self) -> PrintedReport:
        """The part of the report that a terminal shows."""
        summary, *others = self.first.values()
        tables = [
            self.tables[view.name] for view in VIEWS if view.printed and view.name in self.tables
        ]
        shown = (*self.first.values(), *tables)
        unknown = [value for table in shown for value in table.unknown if value.drawn]
        return PrintedReport(
            setting=self.setting,
            verdict=self.verdict,
            summary=summary,
            first_cells=first_cells(self.comparison, self.verdict.cells),
            first_notes=tuple(slowed_notes(self.comparison)),
            tables=(*others, *tables),
            missing=tuple(reasons(unknown, MOST_HEADINGS)),
            findings=self.findings,
        )

    @cached_property
    def figures(self) -> "Mapping[str, Figure]":
        """All figures by name; the first access imports matplotlib."""
        from dpscope.analysis.figures.draw import RunSource, draw_run

        efficiencies = self.what_if.efficiencies if self.what_if else Efficiencies()
        where = self.verdict.setting
        if self.run.recorded is not None:
            where = measured_where(self.run)  # figures may show several batches
        labels = [fact.label for fact in self.verdict.limits]
        measured = "; ".join([where, *self._validity, *labels])
        return draw_run(RunSource(self.run, self.comparison, efficiencies, measured))


def make_report(
    run: RunData,
    link: LinkRate | None = None,
    calibration: Calibration | None = None,
    target_efficiency: float | None = None,
    nccl_logs: Sequence[Path] = (),
    flops: StatedFlops | None = None,
) -> Report:
    """Compute the report without writing it. For all but `nccl_logs` see `comparison.compare`.

    `nccl_logs` are NCCL's logs of one of the jobs. Raises DpscopeError for a log of another job.
    """
    comparison = compare(run, link, calibration, target_efficiency, flops)
    nccl = run_chapter(run, comparison.collective_costs.calibration, nccl_logs)
    return Report(run, comparison, nccl)


def write_report(
    report: Report, figure_formats: Sequence[str] = DEFAULT_FORMATS, folder: Path | None = None
) -> Path:
    """Write the report into `folder` (default: the run's report folder; traces have none); returns
    the page's path.

    `figure_formats` ("png", "svg", "pdf") are the formats of the files in figures/; the page embeds
    its figures.
    """
    if folder is None:
        if report.run.recorded is None:
            raise DpscopeError("write_report: traces have no folder for a report; give folder=")
        folder = report.run.folder.report_path
    write_with_figures(
        folder,
        report.figures,
        figure_formats,
        lambda figures: {
            "comparison.csv": comparison_csv(report.comparison),
            "comparison.md": render_markdown(report),
            "report.html": pages.render_page(make_page(report, figures)),
        },
        report.measured,
    )
    return folder / "report.html"


def make_page(report: Report, figures: "Mapping[str, PageFigure]") -> pages.Page:
    """The page's content from a report and its figures."""
    views = sorted(timeline_views(report.run), key=lambda view: view.cell != report.verdict.cell)
    calibration = report.comparison.collective_costs.calibration
    return pages.Page(
        name=report.run.path.name,
        setting=report.setting,
        verdict=report.verdict,
        first_tables=report.first,
        environment=list(environment_facts(report.run, calibration)),
        findings=report.findings,
        tables={section.name: report.section(section.name) for section in SECTIONS},
        figures=figures,
        timelines=views,
        measures=pages.MEASURES | (pages.LEARNING_MEASURES if report.run.training else {}),
        definitions=[(f"{column.heading} ({column.name})", column.meaning) for column in columns()],
    )


def render_markdown(report: Report) -> str:
    """Tables and findings as Markdown."""
    title = f"# dpscope: {in_markdown(report.run.path.name)}\n"
    parts = [title, *facts_in_markdown(report.verdict), ""]
    parts += [
        render(table, "markdown") for table in (*report.first.values(), *report.tables.values())
    ]
    return "\n".join([*parts, render_findings(report.findings)])
