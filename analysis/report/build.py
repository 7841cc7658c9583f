"""The report folder: comparison.csv, comparison.md, report.html, figures. Written from a loaded run alone."""

from dataclasses import dataclass
from pathlib import Path

from dpscope.analysis.comparison.columns import COLUMNS
from dpscope.analysis.comparison.compare import Comparison, compare
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.figures import draw as figures
from dpscope.analysis.findings.headline import best_sentence
from dpscope.analysis.findings.run_findings import conclusions
from dpscope.analysis.report import comparison_tables as tables
from dpscope.analysis.report.all_tables import report_tables
from dpscope.analysis.report.formulas import formula_table
from dpscope.analysis.report.meanings import LEARNING_MEASURES, MEASURES
from dpscope.analysis.report.page import Page, PageFigure, page_sections, render_page
from dpscope.analysis.report.setting import environment_facts, setting_of
from dpscope.analysis.report.timeline import timeline_views
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import TextTable, render
from dpscope.analysis.text.units import sentence
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.files import write_text
from dpscope.profiling.store.ownership import check_report


@dataclass(frozen=True)
class Report:
    """What a run says: its comparison, its findings, and what its predictions rest on."""

    run: RunData
    comparison: Comparison
    findings: tuple[Finding, ...]
    sources: CostSources

    @property
    def sound(self) -> bool:
        """False when a cell failed or an error finding stands against the numbers."""
        return not any(finding.severity == "error" for finding in self.findings)


def make_report(
    run: RunData,
    link_gbps: float | None = None,
    calibration: Calibration | None = None,
    target_efficiency: float | None = None,
) -> Report:
    """Compare and conclude; nothing is written. What `link_gbps` and `calibration` are, `comparison.compare` tells."""
    comparison = compare(run, link_gbps, calibration, target_efficiency)
    return Report(run, comparison, tuple(conclusions(run, comparison)), CostSources(link_gbps, calibration))


def write_report(report: Report) -> Path:
    """Write the report folder of the run; returns the page's path."""
    folder = report.run.folder.report_path
    drawn = figures.draw_all(report.run, report.comparison, report.sources)
    check_report(report.run.folder.path, drawn)
    svg = figures.write_files(folder / "figures", drawn)
    write_text(folder / "comparison.csv", tables.comparison_csv(report.comparison))
    write_text(folder / "comparison.md", render_markdown(report))
    page = folder / "report.html"
    write_text(page, render_page(make_page(report, svg)))
    return page


def make_page(report: Report, svg: dict[str, str]) -> Page:
    """The page's content from a report and its drawn figures."""
    drawn = {name: PageFigure(name, figures.for_page(name, text), figures.CAPTIONS[name]) for name, text in svg.items()}
    views = timeline_views(report.run)
    shown = report_tables(report.run, report.comparison)
    if formulas := formula_table(report.run, report.comparison, report.sources):
        shown["formulas"] = formulas
    return Page(
        name=report.run.folder.path.name,
        headline=headline(report),
        setting=setting(report),
        environment=tuple(environment_facts(report.run)),
        findings=report.findings,
        sections=tuple(page_sections(report.comparison, shown, drawn, views)),
        timelines=views,
        measures=(*MEASURES, *(LEARNING_MEASURES if report.run.training else ())),
        definitions=tuple((f"{column.heading} ({column.name})", column.meaning) for column in COLUMNS),
    )


def text_tables(report: Report) -> list[TextTable]:
    """The report's tables in the order people read them."""
    return list(report_tables(report.run, report.comparison).values())


def headline(report: Report) -> str:
    """The one sentence to take away."""
    return best_sentence(report.comparison, report.findings)


def setting(report: Report) -> str:
    """What was measured where, in one paragraph."""
    return setting_of(report.run)


def render_markdown(report: Report) -> str:
    """Tables and findings as Markdown."""
    parts = [f"# dpscope: {report.run.folder.path.name}\n", f"{headline(report)}\n", f"{setting(report)}\n"]
    parts += [render(table, "markdown") for table in text_tables(report)]
    parts.append("**Findings**\n")
    parts.append(
        "".join(
            f"- {finding.severity}: {sentence(finding.message)} {sentence(finding.next_step)}\n"
            for finding in report.findings
        )
    )
    return "\n".join(parts)
