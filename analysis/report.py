"""The report folder: comparison.csv, comparison.md, report.html, figures as PNG. Written from a loaded run alone."""

from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import jinja2

from dpscope.analysis import figures, tables
from dpscope.analysis.columns import COLUMNS
from dpscope.analysis.comparison import Comparison, compare
from dpscope.analysis.findings import conclusions
from dpscope.analysis.report_tables import report_tables
from dpscope.analysis.run_analysis import RunData
from dpscope.analysis.units import sentence, show_bytes
from dpscope.profiling.calibration_types import Calibration
from dpscope.profiling.run_store import write_bytes, write_text
from dpscope.profiling.run_types import Finding


@dataclass(frozen=True)
class Report:
    """What a run says: its comparison, its findings, and where the files are once written."""

    run: RunData
    comparison: Comparison
    findings: tuple[Finding, ...]

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
    return Report(run, comparison, tuple(conclusions(run, comparison)))


def write_report(report: Report) -> Path:
    """Write the report folder of the run; returns the page's path."""
    folder = report.run.folder.report_path
    drawn = figures.draw_all(report.run, report.comparison)
    for name, figure in drawn.items():
        write_bytes(folder / "figures" / f"{name}.png", figures.to_png(figure))
    write_text(folder / "comparison.csv", tables.comparison_csv(report.comparison))
    write_text(folder / "comparison.md", render_markdown(report))
    page = folder / "report.html"
    write_text(page, render_html(report, {name: figures.to_svg(figure) for name, figure in drawn.items()}))
    return page


def text_tables(report: Report) -> list[tables.TextTable]:
    """The report's tables in the order people read them."""
    return list(report_tables(report.run, report.comparison).values())


def headline(report: Report) -> str:
    """The one sentence to take away."""
    for code in ("strategy_gap", "communication_measured"):
        for finding in report.findings:
            if finding.code == code:
                return finding.message
    return "No comparison could be made; see the findings."


def render_markdown(report: Report) -> str:
    """Tables and findings as Markdown."""
    parts = [f"# dpscope: {report.run.folder.path.name}\n", f"{headline(report)}\n", f"{setting(report)}\n"]
    parts += [tables.render(table, "markdown") for table in text_tables(report)]
    parts.append("**Findings**\n")
    parts.append(
        "".join(
            f"- {finding.severity}: {sentence(finding.message)} {sentence(finding.next_step)}\n"
            for finding in report.findings
        )
    )
    return "\n".join(parts)


def setting(report: Report) -> str:
    """What was measured where, in one paragraph."""
    manifest = report.run.manifest
    config, environment = manifest.config, manifest.environment
    accelerators = ", ".join(sorted({device.name or "unknown" for device in environment.accelerators}))
    where = (
        f"{len(environment.accelerators)} x {accelerators}"
        if manifest.device_type == "cuda"
        else f"CPU only ({environment.cpu_name or 'unknown'}, {environment.cpu_count} cores)"
    )
    model = next((rank.model for data in report.run.measured for _, rank in data.ranks), None)
    repeats = max(len({repeat for repeat, _ in data.ranks}) for data in report.run.measured)
    size = f" ({model.parameter_count:,} parameters, {show_bytes(model.gradient_bytes)} of gradients)" if model else ""
    return (
        f"{config.model}{size}, {config.data} data, amp {config.amp}, SGD; {where}, torch {environment.torch_version}, "
        f"{environment.platform}; {manifest.threads_per_process} thread(s) per process; seed {config.seed}; "
        f"{repeats} repeat(s) of every cell; measured {manifest.created_at}."
    )


def render_html(report: Report, svg: dict[str, str]) -> str:
    """One self-contained page. Everything that came from a trace or a file is escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(
        (resources.files("dpscope.analysis") / "report.html").read_text(encoding="utf-8")
    )
    return template.render(
        report=report,
        name=report.run.folder.path.name,
        headline=headline(report),
        setting=setting(report),
        tables=text_tables(report),
        columns=COLUMNS,
        figures=[(name, _CAPTIONS[name], svg[name]) for name in _CAPTIONS if name in svg],
        sentence=sentence,
    )


_CAPTIONS = {
    "step_split": "Mean traced step of every cell. Exposed: communicating while not computing. Idle: neither.",
    "phases": "Compute time of each phase and the exposed communication, on 1 and on N devices.",
    "communication": "What the traces show beside what each shortcut would have said; an estimate can be negative.",
    "scaling": "Speedup and efficiency from untraced step times; whiskers and bands are 95% intervals. Weak: same batch per "
    "device; strong: same global batch. Thin lines: the fitted law, to twice the largest count. Grey dots: Amdahl's law with "
    "the exposed share as serial fraction, a misuse.",
}
