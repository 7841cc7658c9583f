"""The report folder: comparison.csv, comparison.md, report.html and figures, written from a loaded run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.cells.columns import COLUMNS
from dpscope.analysis.cells.comparison import Comparison, compare
from dpscope.analysis.costs.sources import CostSources, cost_sources
from dpscope.analysis.findings.answers import QUESTIONS, Verdict
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.report.all_tables import report_tables, terminal_tables
from dpscope.analysis.report.comparison_tables import comparison_csv, first_rows, first_tables, missing_reasons
from dpscope.analysis.report.formulas import formula_table
from dpscope.analysis.report.meanings import LEARNING_MEASURES, MEASURES
from dpscope.analysis.report.nccl_tables import NcclChapter, run_chapter
from dpscope.analysis.report.page import FIRST_FIGURES, Page, PageTable, page_figures, page_sections, render_page
from dpscope.analysis.report.setting import environment_facts, setting_of
from dpscope.analysis.report.stamp import PrintedReport, replace_stamp, write_with_figures
from dpscope.analysis.report.timeline import timeline_views
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable, render, render_findings
from dpscope.analysis.training.tables import TRAINING_TABLES
from dpscope.profiling.machine.gpu_speed import StatedFlops
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.links import LinkRate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpscope.analysis.what_if.answers.written import WhatIfChapter


@dataclass(frozen=True)
class Report:
    """The results of a run, computed once; every renderer only reads them.

    `tables` are in reading order by name; `first` are the two shown first (where a step goes, measured against the shortcuts).
    `missing` lists why values are NA, `sources` what predictions are based on. `formulas`, for the page alone, may have no rows.
    """

    run: RunData
    comparison: Comparison
    findings: tuple[Finding, ...]
    sources: CostSources
    setting: str
    verdict: Verdict
    first: Mapping[str, TextTable]
    tables: Mapping[str, TextTable]
    formulas: TextTable
    missing: tuple[str, ...]
    what_if: "WhatIfChapter | None"
    nccl: NcclChapter

    @property
    def sound(self) -> bool:
        """False if a finding is an error, such as a failed cell."""
        return self.printed.sound

    @cached_property
    def printed(self) -> PrintedReport:
        """The part of the report that a terminal shows."""
        summary, *others = self.first.values()
        return PrintedReport(
            setting=self.setting,
            warnings=self.verdict.warnings,
            answers=self.verdict.labelled,
            summary=summary,
            shortcuts=others[0] if others else None,
            first_rows=first_rows(self.comparison, self.verdict.cells),
            tables=tuple(terminal_tables(self.tables)),
            missing=self.missing,
            findings=self.findings,
        )

    @cached_property
    def figures(self) -> "Mapping[str, Figure]":
        """All figures by name; the first access imports matplotlib."""
        from dpscope.analysis.figures.draw import draw_all

        predicted = self.what_if.figure() if self.what_if is not None else None
        return draw_all(self.run, self.comparison, self.sources) | ({"what_if": predicted} if predicted else {})


def make_report(
    run: RunData,
    link: LinkRate | None = None,
    calibration: Calibration | None = None,
    target_efficiency: float | None = None,
    nccl_logs: Sequence[Path] = (),
    flops: StatedFlops | None = None,
) -> Report:
    """Compute the report without writing it. For `link`, `calibration` and `flops` see `comparison.compare`.

    `nccl_logs` are NCCL's logs of one of the jobs. Raises DpscopeError for a log of another job.
    """
    comparison = compare(run, link, calibration, target_efficiency, flops)
    sources = cost_sources(run.recorded, link, calibration)
    nccl = run_chapter(run, sources, nccl_logs)
    what_if = _what_if(run)
    tables = report_tables(run, comparison, nccl)
    untrained = (reason for name in TRAINING_TABLES if name in tables for reason in tables[name].missing)
    return Report(
        run=run,
        comparison=comparison,
        findings=(*conclusions(run, comparison), *nccl.findings),
        sources=sources,
        setting=setting_of(run),
        verdict=run_verdict(run, comparison),
        first=first_tables(comparison),
        tables={**tables, **(what_if.tables if what_if else {})},
        formulas=formula_table(run, comparison, sources),
        missing=(*missing_reasons(comparison), *untrained),
        what_if=what_if,
        nccl=nccl,
    )


def _what_if(run: RunData) -> "WhatIfChapter | None":
    """The what-if chapter; its modules are imported only for runs that have a base for predictions."""
    if run.recorded is None or not any(data.cell.traits.reducer and data.cell.devices > 1 for data in run.measured):
        return None
    from dpscope.analysis.what_if.answers.written import chapter_of

    return chapter_of(run)


def write_report(
    report: Report, figure_formats: Sequence[str] | None = None, made_from: str = "", folder: Path | None = None
) -> Path:
    """Write the report into `folder` (default: the run's report folder; traces have none); returns the page's path.

    `figure_formats` ("png", "svg", "pdf") are the formats of the files in figures/; the page embeds its figures. None keeps the
    formats of an existing report, and means PNG for a new one. `made_from` is `data_digest` before the run was loaded, by
    which the report is later recognised as current.
    """
    folder = folder or report.run.folder.report_path
    written = write_with_figures(
        folder,
        report.figures,
        figure_formats,
        lambda svg: {
            "comparison.csv": comparison_csv(report.comparison),
            "comparison.md": render_markdown(report),
            "report.html": render_page(make_page(report, svg)),
        },
    )
    replace_stamp(folder, made_from, *written, report.printed)
    return folder / "report.html"


def make_page(report: Report, svg: Mapping[str, str]) -> Page:
    """The page's content from a report and its figures as SVG text."""
    figures = page_figures(svg)
    views = sorted(timeline_views(report.run), key=lambda view: view.cell != report.verdict.cell)
    shown = {**report.tables, **({"formulas": report.formulas} if report.formulas.rows else {})}
    return Page(
        name=report.run.path.name,
        setting=report.setting,
        verdict=report.verdict,
        first_tables=tuple(PageTable(name, table) for name, table in report.first.items()),
        first_figures=tuple(figures[name] for name in FIRST_FIGURES if name in figures),
        environment=tuple(environment_facts(report.run)),
        findings=report.findings,
        sections=tuple(page_sections(shown, figures, views)),
        timelines=tuple(views),
        measures=MEASURES | (LEARNING_MEASURES if report.run.training else {}),
        definitions=tuple((f"{column.heading} ({column.name})", column.meaning) for column in COLUMNS),
    )


def render_markdown(report: Report) -> str:
    """Tables and findings as Markdown."""
    parts = [f"# dpscope: {report.run.path.name}\n", f"{report.setting}\n"]
    parts += [f"{warning}\n" for warning in report.verdict.warnings]
    parts += [f"**{question}** {one.text}\n" for question, one in zip(QUESTIONS, report.verdict.answers, strict=True)]
    parts += [render(table, "markdown") for table in (*report.first.values(), *report.tables.values())]
    return "\n".join([*parts, render_findings(report.findings)])
