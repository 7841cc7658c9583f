"""`dpscope analyze`: a run folder or traces, read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from dpscope.analysis.text.text_table import OutputFormat
from dpscope.launch.commands import options
from dpscope.launch.commands.command import Idle, OptionValues, Request
from dpscope.profiling.store.errors import DpscopeError


def _no_report(values: OptionValues) -> bool:
    """Whether `analyze` prints something else than a run's report, of which the terminal shows more or less."""
    return not options.any_run(values) or values["classic"] or values["output_format"] != "table"


IDLE = (
    Idle(
        ("classic",), lambda values: not options.any_run(values), "trace files alone hold no epochs; give a run folder"
    ),
    Idle(("verbose", "quiet"), _no_report, "it only applies to a run's report without --format and --tables"),
    Idle(
        ("figures", "open_page"),
        lambda values: _no_report(values) and values["report"] is None,
        "only a run's report, without --format and --tables, has a page and figures, and that of traces with --report",
    ),
    options.ONE_DETAIL,
    Idle(
        ("target_efficiency",),
        lambda values: not options.any_run(values),
        "efficiency needs a step on one device to compare with, which traces of one job do not hold; give a run folder",
    ),
    Idle(
        ("target_accuracy",), lambda values: not options.any_run(values), "traces hold no training; give a run folder"
    ),
    Idle(
        ("link", "calibration", "flops"),
        lambda values: not options.any_run(values) and values["output_format"] == "csv",
        "the CSV of traces has the steps alone; use --format table or json",
    ),
    Idle(
        ("nccl_log",),
        lambda values: values["classic"] or values["output_format"] == "csv",
        "what NCCL chose is in the report and its tables and in JSON; omit --tables and --format csv",
    ),
    Idle(("flops",), lambda values: values["classic"], "the tables of data-parallel studies hold no rates of FLOPs"),
    Idle(
        ("report",),
        lambda values: options.any_run(values) and (values["classic"] or values["output_format"] != "table"),
        "a run's tables are printed and nothing is written; omit --format and --tables",
    ),
    Idle(("max_bytes", "max_events"), options.any_run, "a run's traces are read whole; give trace files"),
    Idle(
        ("topology", "hide_hosts"),
        options.any_run,
        "it applies to traces and partials; dpscope bundle hides a run's hosts",
    ),
    Idle(
        ("topology", "hide_hosts"), lambda values: values["output_format"] == "csv", "the CSV of traces names no host"
    ),
    Idle(
        ("max_bytes", "max_events"),
        options.any_partial,
        "partials are not read again as traces; give it to dpscope reduce",
    ),
    Idle(
        ("link", "calibration", "nccl_log", "flops", "report", "target_efficiency"),
        options.trainings_alone,
        "trainings alone hold no measured steps",
    ),
    Idle(
        ("target_accuracy",),
        lambda values: options.any_run(values) and not any(map(options.holds_trainings, values["paths"])),
        "nothing was trained in this folder",
    ),
    Idle(
        ("target_accuracy",),
        lambda values: values["output_format"] == "csv" or values["classic"],
        "the times to an accuracy are in no CSV and in none of --tables; use --format table, json, markdown or latex",
    ),
    Idle(
        ("target_efficiency",),
        lambda values: values["output_format"] in ("csv", "markdown", "latex") or values["classic"],
        "it is judged in the findings, which these tables do not hold; use --format table or json",
    ),
    Idle(("classic",), lambda values: values["output_format"] == "json", "JSON holds every table; give one of them"),
)


@dataclass(frozen=True, kw_only=True)
class AnalyzeRequest(Request):
    """What `dpscope analyze` is called with."""

    paths: Annotated[list[Path], typer.Argument(help="a run folder, or trace files and folders of them")]
    output_format: Annotated[OutputFormat, typer.Option("--format", help="what to print")] = "table"
    classic: Annotated[bool, typer.Option("--tables", help="the tables of data-parallel studies")] = False
    link: options.Link = None
    calibration: options.CalibrationFile = None
    nccl_log: options.NcclLogs = None
    flops: options.Flops = None
    report: options.ReportFolder = None
    target_efficiency: options.TargetEfficiency = None
    target_accuracy: options.TargetAccuracy = None
    figures: options.Figures = None
    max_bytes: options.MaxBytes = None
    max_events: options.MaxEvents = None
    verbose: options.Verbose = False
    quiet: options.Quiet = False
    open_page: options.OpenPage = False
    topology: Annotated[
        Path | None,
        typer.Option(help="show waiting by switch: a file of hosts and their switches, or Slurm's topology.conf"),
    ] = None
    hide_hosts: Annotated[bool, typer.Option("--hide-hosts", help="show numbers instead of host names")] = False


def analyze(request: AnalyzeRequest) -> None:
    link, flops = options.read_link(request.link), options.read_flops(request.flops)
    options.check_targets(request.target_efficiency, request.target_accuracy)
    limits = options.read_limits(request.max_bytes, request.max_events)
    figure_formats = options.read_figures(request.figures)
    runs = runs_among(request.paths)
    detail = options.detail(request.verbose, request.quiet)
    logs = tuple(request.nccl_log or ())
    from rich.console import Console

    console = Console(markup=False)
    if not runs:
        from dpscope.analysis.output.many_ranks import HostOptions
        from dpscope.analysis.output.traced_report import TraceRequest, print_traces

        of_traces = TraceRequest(
            link,
            request.calibration,
            request.report,
            figure_formats,
            request.open_page,
            HostOptions(request.topology, request.hide_hosts),
            logs,
            flops,
        )
        raise typer.Exit(print_traces(request.paths, request.output_format, limits, console, of_traces))
    from dpscope.analysis.output.analyze import Targets, print_run, show_run

    targets = Targets(
        link, request.calibration, request.report, request.target_efficiency, request.target_accuracy, logs, flops
    )
    if request.output_format == "table" and not request.classic:
        sound = show_run(runs[0], targets, console, detail, figure_formats, request.open_page)
    else:
        sound = print_run(runs[0], request.output_format, request.classic, targets, console)
    raise typer.Exit(0 if sound else 1)


def runs_among(paths: list[Path]) -> list[Path]:
    """The run folder, if one was named; raises DpscopeError where another path was named, too."""
    runs = [path for path in paths if _is_run(path)]
    if runs and len(paths) > 1:
        raise DpscopeError(f"{runs[0]} is a run folder: give it alone, or trace files alone")
    return runs


def _is_run(path: Path) -> bool:
    """Whether a path is read as a run; raises DpscopeError for a folder of dpscope's that cannot be."""
    from dpscope.profiling.records.equality import EQUALITY_FOLDER, EQUALITY_NAME
    from dpscope.profiling.store.folders import MANIFEST_NAME, SETTINGS_NAME, is_run_folder
    from dpscope.profiling.store.training_folders import holds_epochs

    if is_run_folder(path) or holds_epochs(path):
        return True
    if (path / "cells").is_dir():
        raise DpscopeError(
            f"{path}: {MANIFEST_NAME} is missing or not dpscope's, which lists its cells; put it back, measure the run "
            f"again, or give one repeat's traces, such as {path}/cells/CELL/repeat0/traces"
        )
    if (path / EQUALITY_FOLDER / SETTINGS_NAME).exists():
        raise DpscopeError(
            f"{path} holds a comparison by dpscope equal, without traces: read {path / EQUALITY_NAME} or the table it printed"
        )
    return False


def defaults() -> dict[str, str]:
    """By option."""
    return {"--figures": "those of the report that is there; png for the first"}
