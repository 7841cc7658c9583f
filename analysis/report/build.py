"""The report folder: comparison.csv, comparison.md, report.html, figures. Written from a loaded run alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.cells.columns import COLUMNS
from dpscope.analysis.cells.comparison import Comparison, compare
from dpscope.analysis.costs.sources import CostSources, cost_sources
from dpscope.analysis.findings.answers import LABELS, QUESTIONS, Verdict
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.report.all_tables import report_tables, terminal_tables
from dpscope.analysis.report.comparison_tables import comparison_csv, first_tables, missing_reasons, summarised
from dpscope.analysis.report.formulas import formula_table
from dpscope.analysis.report.meanings import LEARNING_MEASURES, MEASURES, meanings
from dpscope.analysis.report.nccl_tables import NcclChapter, run_chapter
from dpscope.analysis.report.page import Page, PageAnswers, PageFigure, PageTable, page_sections, render_page
from dpscope.analysis.report.printed import PrintedReport, first_rows
from dpscope.analysis.report.sections import FIRST_FIGURES
from dpscope.analysis.report.setting import environment_facts, setting_of
from dpscope.analysis.report.stamp import formats_there, replace_stamp
from dpscope.analysis.report.timeline import timeline_views
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable, render
from dpscope.analysis.text.units import sentence
from dpscope.analysis.training.tables import training_tables
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.store.files import write_together
from dpscope.profiling.store.ownership import check_report_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpscope.analysis.what_if.answers.chapter import WhatIfChapter


@dataclass(frozen=True)
class Report:
    """What a run says, worked out once; every renderer only reads it.

    `tables` by name in the order people read them, `first` the two that come first (where a step goes, measured against the
    shortcuts), `missing` why values are NA, `sources` what predictions rest on.
    """

    run: RunData
    comparison: Comparison
    findings: tuple[Finding, ...]
    sources: CostSources
    setting: str
    verdict: Verdict
    first: Mapping[str, TextTable]
    tables: Mapping[str, TextTable]
    formulas: TextTable | None
    missing: tuple[str, ...]
    what_if: "WhatIfChapter | None"
    nccl: NcclChapter

    @property
    def sound(self) -> bool:
        """False when a cell failed or an error finding stands against the numbers."""
        return self.printed.sound

    @cached_property
    def printed(self) -> PrintedReport:
        """The part of it that a terminal shows."""
        summary, *others = self.first.values()
        return PrintedReport(
            setting=self.setting,
            warnings=self.verdict.warnings,
            answers=tuple((label, one.text) for label, one in zip(LABELS, self.verdict.answers, strict=True)),
            summary=summary,
            shortcuts=others[0] if others else None,
            first_rows=first_rows(_cells(self.comparison), self.verdict.cells, self.comparison.variants),
            tables=tuple(terminal_tables(self.tables)),
            missing=self.missing,
            findings=self.findings,
        )

    @cached_property
    def figures(self) -> "Mapping[str, Figure]":
        """All figures by name; matplotlib is loaded when they are asked for."""
        from dpscope.analysis.figures.draw import draw_all

        predicted = self.what_if.figure() if self.what_if is not None else None
        return draw_all(self.run, self.comparison, self.sources) | ({"what_if": predicted} if predicted else {})


def make_report(
    run: RunData,
    link: LinkRate | None = None,
    calibration: Calibration | None = None,
    target_efficiency: float | None = None,
    nccl_logs: Sequence[Path] = (),
) -> Report:
    """Compare and conclude; nothing is written. For `link` and `calibration` see `comparison.compare`.

    `nccl_logs` are NCCL's own logs of one of the jobs. Raises DpscopeError for a log of another job.
    """
    comparison = compare(run, link, calibration, target_efficiency)
    sources = cost_sources(run.recorded, link, calibration)
    nccl = run_chapter(run, sources, nccl_logs)
    findings = (*conclusions(run, comparison), *nccl.findings)
    what_if = _what_if(run)
    return Report(
        run=run,
        comparison=comparison,
        findings=findings,
        sources=sources,
        setting=setting_of(run),
        verdict=run_verdict(run, comparison),
        first=first_tables(comparison),
        tables={**report_tables(run, comparison, nccl), **nccl.tables(), **(what_if.tables if what_if else {})},
        formulas=formula_table(run, comparison, sources),
        missing=(*missing_reasons(comparison), *_untrained(run)),
        what_if=what_if,
        nccl=nccl,
    )


def _what_if(run: RunData) -> "WhatIfChapter | None":
    """The chapter of predictions; what it needs is loaded only for a run that has a base for it."""
    if run.recorded is None or not any(data.cell.traits.reducer and data.cell.devices > 1 for data in run.measured):
        return None
    from dpscope.analysis.what_if.answers.chapter import chapter_of

    return chapter_of(run)


def _cells(comparison: Comparison) -> list[tuple[str, str, int, int]]:
    """Name, strategy, devices and batch of the cells in the first table."""
    columns = summarised(comparison)[["cell", "strategy", "devices", "batch_size"]]
    return list(columns.itertuples(index=False, name=None))


def _untrained(run: RunData) -> list[str]:
    """Why values of the trainings' tables are missing."""
    shown = training_tables(run.training).values() if run.training else ()
    return [reason for table in shown for reason in table.missing]


def write_report(
    report: Report, figure_formats: Sequence[str] | None = None, made_from: str = "", folder: Path | None = None
) -> Path:
    """Write the report into `folder`, which is the run's own unless told (traces have none); returns the page's path.

    `figure_formats`, of "png", "svg" and "pdf", say which files lie in figures/ beside the page, which holds its own; None:
    those of the report that stands there, PNG for the first one. `made_from` is what `data_digest` gave before the run was
    loaded: by it the report is known as current later.
    """
    from dpscope.analysis.figures.draw import figure_files

    folder = folder or report.run.folder.report_path
    formats = formats_there(folder) if figure_formats is None else tuple(figure_formats)
    files = [f"{name}.{one}" for name in report.figures for one in formats]
    check_report_folder(folder, files)
    svg, drawn = figure_files(report.figures, formats)
    texts = {
        "comparison.csv": comparison_csv(report.comparison),
        "comparison.md": render_markdown(report),
        "report.html": render_page(make_page(report, svg)),
    }
    contents: dict[str, bytes | str] = {**texts, **{f"figures/{name}": content for name, content in drawn.items()}}
    write_together({folder / name: content for name, content in contents.items()})
    replace_stamp(folder, made_from, (*texts, *(f"figures/{name}" for name in files)), formats, report.printed)
    return folder / "report.html"


def make_page(report: Report, svg: dict[str, str]) -> Page:
    """The page's content from a report and its drawn figures as SVG text."""
    from dpscope.analysis.figures.draw import CAPTIONS, for_page

    drawn = {name: PageFigure(name, for_page(name, text), CAPTIONS[name]) for name, text in svg.items()}
    views = sorted(timeline_views(report.run), key=lambda view: view.cell != report.verdict.cell)
    shown = {**report.tables, **({"formulas": report.formulas} if report.formulas else {})}
    first = tuple(drawn.pop(name) for name in FIRST_FIGURES if name in drawn)
    return Page(
        name=report.run.path.name,
        headline="",
        setting=report.setting,
        answers=PageAnswers(
            report.verdict,
            tuple(
                PageTable(name, table, meanings(name, table, report.comparison)) for name, table in report.first.items()
            ),
            first,
        ),
        environment=tuple(environment_facts(report.run)),
        findings=report.findings,
        sections=tuple(page_sections(report.comparison, shown, drawn, views)),
        timelines=tuple(views),
        measures=(*MEASURES, *(LEARNING_MEASURES if report.run.training else ())),
        definitions=tuple((f"{column.heading} ({column.name})", column.meaning) for column in COLUMNS),
    )


def render_markdown(report: Report) -> str:
    """Tables and findings as Markdown."""
    parts = [f"# dpscope: {report.run.path.name}\n", f"{report.setting}\n"]
    parts += [f"{warning}\n" for warning in report.verdict.warnings]
    parts += [f"**{question}** {one.text}\n" for question, one in zip(QUESTIONS, report.verdict.answers, strict=True)]
    parts += [render(table, "markdown") for table in (*report.first.values(), *report.tables.values())]
    parts.append("**Findings**\n")
    parts.append(
        "".join(
            f"- {finding.severity}: {sentence(finding.message)} {sentence(finding.next_step)}\n"
            for finding in report.findings
        )
    )
    return "\n".join(parts)
