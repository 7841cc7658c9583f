"""The report of a loaded run: its tables in reading order, and its folder with comparison.csv and
.md, page and figures.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dpscope.analysis.cells.columns import COLUMNS
from dpscope.analysis.cells.comparison import Comparison, compare
from dpscope.analysis.cells.predicted import model_sizes
from dpscope.analysis.costs.costs import Costs
from dpscope.analysis.costs.formulas import dp_transfer_us, ring_all_reduce_us
from dpscope.analysis.findings.answers import QUESTIONS, Verdict
from dpscope.analysis.findings.comparisons import cost_table, law_table, scaling_table
from dpscope.analysis.findings.predictions import (
    collective_table,
    error_table,
    identity_table,
    off_notes,
)
from dpscope.analysis.findings.run_findings import beyond_tables, conclusions
from dpscope.analysis.findings.verdict import run_verdict
from dpscope.analysis.report import comparison_tables as compared
from dpscope.analysis.report import page as pages
from dpscope.analysis.report.files import DEFAULT_FORMATS, PrintedReport, write_with_figures
from dpscope.analysis.report.formulas import formula_table
from dpscope.analysis.report.nccl_tables import NcclChapter, run_chapter
from dpscope.analysis.report.rank_tables import (
    contention_table,
    phase_table,
    rank_table,
    wait_table,
)
from dpscope.analysis.report.setting import environment_facts, setting_of
from dpscope.analysis.report.timeline import timeline_views
from dpscope.analysis.runs.cell_findings import SUSPECT
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.text_table import (
    Field,
    TextTable,
    in_markdown,
    render,
    render_findings,
    table_of,
)
from dpscope.analysis.text.units import Unit, show_bytes
from dpscope.analysis.training.tables import TRAINING_TABLES, training_tables
from dpscope.profiling.machine import link_specifications as links
from dpscope.profiling.machine.gpu_speed import StatedFlops
from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.finding import Finding, counted, grouped
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.short_repr import short_repr
from dpscope.profiling.records.strategies import traits_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpscope.analysis.what_if.answer import RunAnswer


@dataclass(frozen=True)
class Report:
    """The results of a run, computed once; every renderer only reads them.

    `tables` are in reading order by name; `first` are the two shown first (where a step goes,
    measured against the shortcuts). `missing` lists why values are NA. `formulas`, for the page
    alone, may have no rows.
    """

    __repr__ = short_repr

    run: RunData
    comparison: Comparison
    findings: tuple[Finding, ...]
    setting: str
    verdict: Verdict
    first: Mapping[str, TextTable]
    tables: Mapping[str, TextTable]
    formulas: TextTable
    missing: tuple[str, ...]
    what_if: "RunAnswer | None"
    nccl: NcclChapter

    @cached_property
    def shown_findings(self) -> tuple[Finding, ...]:
        """Those that the page, comparison.md and a terminal show; JSON has all."""
        return beyond_tables(self.findings)

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
            first_cells=compared.first_cells(self.comparison, self.verdict.cells),
            tables=tuple(
                table for name, table in self.tables.items() if name not in pages.PAGE_ALONE
            ),
            missing=self.missing,
            findings=self.shown_findings,
        )

    @cached_property
    def figures(self) -> "Mapping[str, Figure]":
        """All figures by name; the first access imports matplotlib."""
        from dpscope.analysis.figures.draw import draw_all

        predicted = self.what_if.figure() if self.what_if is not None else None
        return draw_all(self.run, self.comparison) | ({"what_if": predicted} if predicted else {})


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
    what_if = _what_if(run, comparison.collective_costs)
    tables = report_tables(run, comparison, nccl, what_if)
    untrained = (
        reason for name in TRAINING_TABLES if name in tables for reason in tables[name].missing
    )
    return Report(
        run=run,
        comparison=comparison,
        findings=(*conclusions(run, comparison), *nccl.findings),
        setting=setting_of(run),
        verdict=run_verdict(run, comparison),
        first=compared.first_tables(comparison),
        tables=tables,
        formulas=formula_table(run, comparison),
        missing=(*compared.missing_reasons(comparison), *untrained),
        what_if=what_if,
        nccl=nccl,
    )


def _what_if(run: RunData, costs: Costs) -> "RunAnswer | None":
    """The what-if chapter; its modules are imported only for runs that have a base for
    predictions.
    """
    if run.recorded is None or not any(
        data.traits.reducer and data.devices > 1 for data in run.measured
    ):
        return None
    from dpscope.analysis.what_if.answer import chapter_of

    return chapter_of(run, costs)


def write_report(
    report: Report, figure_formats: Sequence[str] = DEFAULT_FORMATS, folder: Path | None = None
) -> Path:
    """Write the report into `folder` (default: the run's report folder; traces have none); returns
    the page's path.

    `figure_formats` ("png", "svg", "pdf") are the formats of the files in figures/; the page embeds
    its figures.
    """
    folder = folder or report.run.folder.report_path
    write_with_figures(
        folder,
        report.figures,
        figure_formats,
        lambda svg: {
            "comparison.csv": compared.comparison_csv(report.comparison),
            "comparison.md": render_markdown(report),
            "report.html": pages.render_page(make_page(report, svg)),
        },
    )
    return folder / "report.html"


def make_page(report: Report, svg: Mapping[str, str]) -> pages.Page:
    """The page's content from a report and its figures as SVG text."""
    views = sorted(timeline_views(report.run), key=lambda view: view.cell != report.verdict.cell)
    shown = {**report.tables, **({"formulas": report.formulas} if report.formulas.rows else {})}
    return pages.Page(
        name=report.run.path.name,
        setting=report.setting,
        verdict=report.verdict,
        first_tables=report.first,
        environment=list(
            environment_facts(report.run, report.comparison.collective_costs.calibration)
        ),
        findings=report.shown_findings,
        tables=shown,
        figures=svg,
        timelines=views,
        measures=pages.MEASURES | (pages.LEARNING_MEASURES if report.run.training else {}),
        definitions=[(f"{column.heading} ({column.name})", column.meaning) for column in COLUMNS],
    )


def render_markdown(report: Report) -> str:
    """Tables and findings as Markdown."""
    lines = [f"# dpscope: {report.run.path.name}", report.setting, *report.verdict.warnings]
    lines += [
        f"**{question}** {one.text}"
        for question, one in zip(QUESTIONS, report.verdict.answers, strict=True)
    ]
    parts = [f"{in_markdown(line)}\n" for line in lines]
    parts += [
        render(table, "markdown") for table in (*report.first.values(), *report.tables.values())
    ]
    return "\n".join([*parts, render_findings(report.shown_findings)])


_SOURCES = {
    "calibration": "calibration, which measured the collectives without compute",
    "specification": "link's specification by the ring model without latency, a lower bound",
}
_COMPARED = "transfer: of the collectives that have one (rooted broadcasts and reduces have none); for DP all communication"


def report_tables(
    run: RunData, comparison: Comparison, nccl: NcclChapter, what_if: "RunAnswer | None"
) -> dict[str, TextTable]:
    """All tables by name, in the order of the page's sections.

    Tables without values are omitted.
    """
    known = [data for data in run.measured if data.communication_known]
    contended = [(row.cell, row.contentions, row.ledger) for row in comparison.rows.values()]
    views = compared.views_by_name(comparison)
    tables: dict[str, TextTable | None] = {
        **views,
        "gap": compared.gap_table(comparison),
        "costs": cost_table(comparison.costs),
        # more than steps
        "memory": memory if (memory := views.get("memory")) and len(memory.headings) > 2 else None,
        "scaling": scaling_table(comparison),
        "laws": law_table(comparison),
        "contention": contention_table(
            [(cell, one, of.hidden_us) for cell, one, of in contended if one and of]
        ),
        "dp_phases": phase_table({data.name: data.tables.dp_phases for data in known}),
        "ranks": rank_table(known),
        "waits": wait_table(
            {data.name: data.mean_waits for data in known}, " (means over repeats)"
        ),
        "identity": identity_table(comparison),
        "reasons": error_table(comparison),
        "predictions": _with_sources(views.get("predictions"), comparison, run),
        "collectives": collective_table(
            comparison,
            lambda one: nccl.choice(one.ranks, run.cells[one.cell].nodes, one.kind, one.size_bytes),
        ),
        **nccl.tables(),
        "projection": projection_table(run),
        **(what_if.tables if what_if else {}),
        **(training_tables(run.training) if run.training else {}),
    }
    names = (name for section in pages.SECTIONS for name in section.tables)
    return {name: table for name in names if (table := tables.get(name)) is not None and table.rows}


def _with_sources(
    table: TextTable | None, comparison: Comparison, run: RunData
) -> TextTable | None:
    """The table of predictions with notes on what they are based on."""
    if table is None:
        return None
    rows = [row for row in comparison.rows.values() if row.text("prediction_source") is not None]
    sources = grouped((row.text("prediction_source") or "", row.cell) for row in rows)
    ratios = grouped((row.text("prediction_contention") or "", row.cell) for row in rows)
    alone = {row.cell for row in rows if traits_of(row.strategy).reducer}
    idle = [cell for cell in ratios.pop("", ()) if cell in alone]
    later = "the calibration was made after the start of the run, so these are not forecasts"
    notes = (
        *(
            f"predicted from the {_SOURCES[source]}: {', '.join(cells)}"
            for source, cells in sorted(sources.items())
        ),
        *(
            f"with contention as calibrated, {ratio}: {', '.join(cells)}"
            for ratio, cells in sorted(ratios.items())
        ),
        *([f"without contention, as on an idle machine: {', '.join(idle)}"] if idle else []),
        *off_notes(comparison, shared_cores=run.device_type == "cpu"),
        *_engine_notes(run),
        *([later] if comparison.calibrated_later else []),
    )
    return replace(table, notes=(*table.notes, _COMPARED, *notes))


def _engine_notes(run: RunData) -> Iterator[str]:
    """The NCCL engine of torch that the prediction of exposed communication assumes, if NCCL was
    used.
    """
    ran = {
        rank.nccl_engine
        for data in run.measured
        for _, rank in data.ranks
        if rank.nccl_engine is not None
    }
    if SUSPECT in ran:
        yield (
            "exposed is predicted for torch's engine ProcessGroupNCCL, whose all-reduces overlap the backward pass; whether "
            f"those of {SUSPECT}, which cells used, do so is not confirmed on hardware"
        )
    elif ran:
        yield f"exposed is predicted for torch's engine {', '.join(sorted(ran))}, which the cells used"


_NETWORKS = (
    "Ethernet 1 Gb/s", "Ethernet 10 Gb/s", "Ethernet 100 Gb/s", "InfiniBand EDR x4 (100 Gb/s)",
    "InfiniBand HDR x4 (200 Gb/s)", "InfiniBand NDR x4 (400 Gb/s)",
)  # fmt: skip
_NVLINK_MODELS = ("V100-SXM2", "A100-SXM4", "H100 SXM5", "B200")  # NVLink 2 to 5
_SHARES = (1.0, 0.5, 0.25)
_PROJECTED = "Predicted from the link's specification for this many bytes; nothing was measured"


def projected_links() -> dict[str, float]:
    """Specified GB/s in one direction by name: networks, PCIe x16, and all NVLinks of a GPU per
    generation.
    """
    networks = links.ETHERNET_GB_PER_S | links.INFINIBAND_GB_PER_S
    rates = {name: networks[name] for name in _NETWORKS}
    rates |= {
        f"PCIe {generation}.0 x16": links.pcie_gb_per_s(generation) for generation in (3, 4, 5)
    }
    for name in _NVLINK_MODELS:
        model = links.gpu_model(name)
        assert model is not None
        link = links.model_link(model)
        assert link is not None
        rates[f"{link.name} ({model.title})"] = link.gb_per_s
    return rates


def projection_table(run: RunData) -> TextTable | None:
    """Predicted transfer time on `projected_links` for the gradients and for half and a quarter of
    their bytes.

    It is of the largest measured device count: DDP's ring all-reduce, else DataParallel's broadcast
    and reduce by NCCL. None without a multi-device cell.
    """
    several = [one for one in run.measured if one.devices > 1]
    moving = [one for one in several if one.traits.reducer or one.traits.peer_copies]
    known = [(data, sizes) for data in moving if (sizes := model_sizes(data)) is not None]
    if not known:
        return None
    cell, sizes = max(known, key=lambda one: (one[0].traits.reducer, one[0].devices))
    by_ring = cell.traits.reducer
    moved_bytes = sizes.gradient_bytes if by_ring else sizes.parameter_bytes

    def predicted_us(size_bytes: float, gb_per_s: float) -> float:
        if by_ring:
            return ring_all_reduce_us(size_bytes, cell.devices, gb_per_s)
        return dp_transfer_us(
            size_bytes, sizes.buffer_bytes, cell.devices, gb_per_s, peer_copies=False
        )

    rates = projected_links()
    rows = [
        {
            "link": name,
            "rate": rate,
            **{str(share): predicted_us(share * moved_bytes, rate) for share in _SHARES},
        }
        for name, rate in rates.items()
    ]
    what = "ring all-reduce of the gradients" if by_ring else "DataParallel's broadcast and reduce"
    return table_of(
        f"Predicted, not measured: {what} on other links, {counted(cell.devices, 'device')}",
        (
            Field("link", "link", meaning="A link between devices"),
            Field("one way", "rate", Unit("GB/s", 1.0, 3), "Its specified rate in one direction"),
            *(
                Field(show_bytes(share * moved_bytes), str(share), "time", _PROJECTED)
                for share in _SHARES
            ),
        ),
        rows,
        [
            "rates: docs/links.md, with sources; a lower bound: no latency, no contention, every hop on this link",
            "half: gradients in 16 bits; a quarter: in 8 bits or compressed 4 times",
        ],
        times=[predicted_us(moved_bytes, rate) for rate in rates.values()],
    )
