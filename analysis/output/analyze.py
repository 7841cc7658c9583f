"""What the commands print, by rich on a terminal and as text elsewhere; each returns whether nothing speaks against it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.live import Live

from dpscope.analysis.output import traces as trace_output
from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.output.tensorboard import export_tensorboard, export_trainings
from dpscope.analysis.report import comparison_tables as tables
from dpscope.analysis.report.all_tables import report_tables, terminal_tables
from dpscope.analysis.report.build import Report, headline, make_report, setting, write_report
from dpscope.analysis.report.calibration import calibration_path, load_calibration
from dpscope.analysis.report.classic_tables import classic_tables
from dpscope.analysis.report.training_report import print_training, show_training
from dpscope.analysis.runs.run_data import RunData, load_run
from dpscope.analysis.text.terminal import print_findings, print_missing, print_table
from dpscope.analysis.text.text_table import TextTable, render
from dpscope.analysis.text.units import sentence
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_MAX_BYTES
from dpscope.analysis.traces.steps.findings import CUT_SHORT
from dpscope.analysis.training.data import load_training
from dpscope.analysis.training.tables import training_tables
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.folders import is_run_folder
from dpscope.profiling.store.training_folders import holds_epochs

OutputFormat = Literal["table", "json", "csv", "markdown", "latex"]

_IN_TABLES = frozenset({RunCode.COMMUNICATION_MEASURED, RunCode.ESTIMATES})  # said again in the report, in words


@dataclass(frozen=True)
class Targets:
    """What the user has told or wants a run to be judged against; None is unknown, or nothing."""

    link_gbps: float | None = None  # of the link, one way
    efficiency: float | None = None  # 0..1
    accuracy: float | None = None  # percent


def load(path: Path, target_accuracy: float | None = None) -> RunData:
    """Load a run, telling on standard error which cell is being read."""
    with reading() as tell:
        return load_run(path, tell, target_accuracy)


@contextmanager
def reading() -> Iterator[Callable[[str], None]]:
    """Tell a terminal, on standard error, what is being read.

    Without a thread that redraws it: traces are read by processes forked from this one.
    """
    to_terminal = Console(stderr=True, highlight=False)
    with Live("Reading traces", console=to_terminal, auto_refresh=False, transient=True) as shown:
        yield lambda what: shown.update(f"Reading traces: {what}", refresh=True)


def report_of(path: Path, targets: Targets) -> Report:
    """The report of a run, with the calibration that lies in its folder, if one does."""
    calibration = load_calibration(path) if calibration_path(path).exists() else None
    return make_report(load(path, targets.accuracy), targets.link_gbps, calibration, targets.efficiency)


def write_tensorboard(path: Path, link_gbps: float | None) -> Path:
    """Write the TensorBoard folder of a run, or of a folder with trainings alone; returns it."""
    if not is_run_folder(path) and holds_epochs(path):
        return export_trainings(load_training(path))
    return export_tensorboard(report_of(path, Targets(link_gbps)))


def show_run(path: Path, targets: Targets, console: Console) -> bool:
    """Analyze a run, write its report, print what matters; of a folder with trainings alone, these."""
    if not is_run_folder(path):
        return show_training(path, targets.accuracy, console)
    report = report_of(path, targets)
    page = write_report(report)
    console.print(f"\n[bold]{sentence(headline(report))}[/]", highlight=False)
    console.print(setting(report), style="dim", highlight=False)
    for table in terminal_tables(report.run, report.comparison):
        print_table(console, table)
    print_missing(console, [*tables.missing_reasons(report.comparison), *_untrained(report.run)])
    print_findings(console, [finding for finding in report.findings if finding.code not in _IN_TABLES])
    console.print(f"\nReport: {page}", highlight=False, soft_wrap=True)
    return report.sound


def _untrained(run: RunData) -> list[str]:
    """Why values of the trainings' tables are missing."""
    shown = training_tables(run.training).values() if run.training else ()
    return [reason for table in shown for reason in table.missing]


def print_run(path: Path, output_format: OutputFormat, classic: bool, targets: Targets, console: Console) -> bool:
    """A run in a format other programs read, or its classic tables; nothing is written."""
    if not is_run_folder(path) and not classic:
        return print_training(path, output_format, targets.accuracy)
    report = report_of(path, targets)
    if output_format == "json":
        sys.stdout.write(run_json(report) + "\n")
    elif output_format == "csv" and not classic:
        sys.stdout.write(tables.comparison_csv(report.comparison))
    elif classic:
        print_tables(classic_tables(report.run, report.comparison, targets.link_gbps), output_format, console)
    else:
        print_tables(list(report_tables(report.run, report.comparison).values()), output_format, console)
    return report.sound


def print_traces(paths: Sequence[Path], output_format: OutputFormat, max_bytes: int | None, console: Console) -> int:
    """Traces not made by a run; the exit status: 2 for a file that was cut short, told on standard error besides."""
    with reading() as tell:
        analysis = analyze_traces(
            paths, max_bytes or DEFAULT_MAX_BYTES, progress=lambda done, of: tell(f"{done} of {of} read")
        )
    if output_format == "json":
        sys.stdout.write(trace_output.to_json(analysis) + "\n")
    elif output_format == "csv":
        sys.stdout.write(trace_output.to_csv(analysis))
    else:
        print_tables(trace_output.to_tables(analysis), output_format, console)
        if analysis.findings and output_format == "table":
            print_findings(console, analysis.findings)
    return trace_status(analysis.findings)


def trace_status(findings: Sequence[Finding]) -> int:
    """The exit status that findings about trace files mean: 2 and a line on standard error for one that was cut short."""
    cut_short = [finding for finding in findings if finding.code in CUT_SHORT]
    for finding in cut_short[:1]:
        sys.stderr.write(f"dpscope: {finding.message}; {finding.next_step}\n")
    return 2 if cut_short else int(any(finding.severity == "error" for finding in findings))


def print_tables(shown: Sequence[TextTable], output_format: OutputFormat, console: Console) -> None:
    """Tables on a terminal, or as text that other programs read."""
    for table in shown:
        if output_format == "table":
            print_table(console, table)
        else:
            sys.stdout.write(render(table, output_format) + "\n")
