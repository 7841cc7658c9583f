"""`dpscope analyze`: a run folder or traces, read."""

from dataclasses import dataclass
from pathlib import Path

import typer

from dpscope.analysis.report.files import DEFAULT_FORMATS
from dpscope.analysis.text.text_table import OutputFormat
from dpscope.launch.commands import options
from dpscope.launch.commands.command import (
    Help,
    Idle,
    OptionValues,
    Request,
    argument,
    open_console,
    option,
)
from dpscope.launch.commands.help_text import READING
from dpscope.profiling.records.typed_text import choose_from, parse_part
from dpscope.profiling.store.errors import DpscopeError

HELP = Help(
    examples=(
        "runs/mine",
        "trace_rank0.json.gz trace_rank1.json.gz",
        "traces/ --report report/ --link 25GB/s",
    )
)


def _traces(values: OptionValues) -> bool:
    return not options.any_run(values)


def _no_screen(values: OptionValues) -> bool:
    """Whether `analyze` prints data or the tables of studies rather than its answers."""
    return bool(values["classic"]) or values["output_format"] != "table"


def _no_report(values: OptionValues) -> bool:
    """Whether `analyze` prints something else than a run's report, of which the terminal shows more
    or less.
    """
    return _traces(values) or _no_screen(values)


IDLE = (
    Idle("classic", _traces, "a run folder holds epochs, trace files do not"),
    Idle(
        "verbose",
        _no_screen,
        "it only applies to what a terminal shows, without --format and --tables",
    ),
    Idle("quiet", _no_report, "it only applies to a run's report without --format and --tables"),
    Idle(
        "figures open_page",
        lambda values: _no_report(values) and values["report"] is None,
        "only a run's report, without --format and --tables, has a page and figures, and that of traces with --report",
    ),
    options.ONE_DETAIL,
    Idle(
        "target_efficiency",
        _traces,
        "efficiency needs a step on one device to compare with, which a run folder holds and traces of one job do not",
    ),
    Idle("target_accuracy", _traces, "a run folder holds trainings, traces do not"),
    Idle(
        "link calibration flops",
        lambda values: _traces(values) and values["output_format"] == "csv",
        "the CSV of traces has the steps alone; --format table and json have what it changes",
    ),
    Idle(
        "nccl_log",
        lambda values: values["classic"] or values["output_format"] == "csv",
        "what NCCL chose is shown without --tables and --format csv",
    ),
    Idle("flops", "classic", "the tables of data-parallel studies hold no rates of FLOPs"),
    Idle(
        "report",
        lambda values: not _traces(values) and _no_report(values),
        "with --format or --tables a run's tables are printed and nothing is written",
    ),
    Idle(
        "max_bytes max_events steps_by",
        options.any_run,
        "it applies to trace files: a run's traces are read whole, by their own steps",
    ),
    Idle(
        "hide_hosts",
        options.any_run,
        "it applies to traces and partials; dpscope bundle hides a run's hosts",
    ),
    Idle(
        "hide_hosts",
        lambda values: values["output_format"] == "csv" and not options.any_record(values),
        "the CSV of traces names no host",
    ),
    Idle(
        "max_bytes max_events steps_by",
        options.any_partial,
        "it applies to dpscope reduce: partials are not read again as traces",
    ),
    Idle(
        "hosts",
        lambda values: not options.any_record(values),
        "it states where the ranks of Flight Recorder dumps ran; traces and runs record that",
    ),
    Idle(
        "calibration nccl_log flops max_events steps_by",
        options.any_record,
        "records of collectives hold no steps and no compute",
    ),
    Idle(
        "link calibration nccl_log flops report target_efficiency",
        options.trainings_alone,
        "trainings alone hold no measured steps",
    ),
    Idle(
        "target_accuracy",
        lambda values: not any(map(options.holds_trainings, values["paths"])),
        "nothing was trained in this folder",
    ),
    Idle(
        "target_accuracy",
        lambda values: values["output_format"] == "csv" or values["classic"],
        "the times to an accuracy are in no CSV and in none of --tables",
    ),
    Idle(
        "target_efficiency",
        lambda values: values["output_format"] in ("csv", "markdown", "latex") or values["classic"],
        "it is judged in the findings, which --format table and json have and these tables do not",
    ),
    Idle("classic", lambda values: values["output_format"] == "json", "JSON holds every table"),
)


@dataclass(frozen=True, kw_only=True)
class AnalyzeRequest(Request):
    paths: list[Path] = argument(
        "a run folder, or traces or records of collectives: files or folders of them",
        metavar="PATH ...",
    )
    output_format: OutputFormat = option("what to print", "--format", default="table")
    classic: bool = option(
        "tables of epoch time, cost and bandwidth for a text, rounded (for programs: --format csv alone)",
        "--tables",
        default=False,
    )
    link: options.Link = None
    calibration: Path | None = option(
        "what predictions use: calibration.json, a run folder, or logs of a program such as nccl-tests",
        "--calibration",
    )
    nccl_log: options.NcclLogs = None
    flops: str | None = option(
        "FLOPs of one step on one device, for jobs that did not count them: 1.2T; with MFU: 1.2T:bf16",
        metavar="COUNT",
    )
    report: Path | None = option(
        "where the report of traces goes; a run's goes into the run folder", "--report"
    )
    target_efficiency: options.TargetEfficiency = None
    target_accuracy: options.TargetAccuracy = None
    figures: str | None = option(
        "also save the figures, which the page holds, as png, svg or pdf, or several of them",
        metavar="FORMAT,...",
    )
    max_bytes: options.MaxBytes = None
    max_events: options.MaxEvents = None
    steps_by: options.StepsBy = None
    verbose: options.Verbose = False
    quiet: options.Quiet = False
    open_page: options.OpenPage = False
    hosts: Path | None = option(
        "where the ranks of Flight Recorder dumps ran: a file of lines such as 8, node1",
        rich_help_panel=READING,
    )
    hide_hosts: bool = option(
        "show numbers instead of host names", "--hide-hosts", default=False, rich_help_panel=READING
    )


def analyze(request: AnalyzeRequest) -> None:
    from dpscope.analysis.output.run_screen import Targets, print_run, show_run
    from dpscope.profiling.machine.gpu_speed import parse_flops

    link, flops = (
        options.read_link(request.link),
        options.read("--flops", request.flops, parse_flops),
    )
    limits = options.read_limits(request.max_bytes, request.max_events, request.steps_by)
    targets = Targets(
        link=link,
        calibration=request.calibration,
        report=request.report,
        efficiency=options.read("--target-efficiency", request.target_efficiency, parse_part),
        accuracy=options.read_accuracy(request.target_accuracy),
        nccl_logs=tuple(request.nccl_log or ()),
        flops=flops,
        figure_formats=_figure_formats(request.figures),
        open_page=request.open_page,
        hide_hosts=request.hide_hosts,
    )
    logs = request.nccl_log or ()
    options.require_paths("--nccl-log", logs, "NCCL's log of the job, or a folder of logs")
    runs, console = runs_among(request.paths), open_console()
    if not runs:
        from dpscope.analysis.output.traces_screen import print_traces
        from dpscope.analysis.text.terminal import progress
        from dpscope.analysis.traces.ranks.readers import RECORDS, find_files

        with progress("Searching for traces"):
            inputs = find_files(request.paths)
        if inputs.reader is RECORDS:
            from dpscope.analysis.output.whole_job import print_records

            raise typer.Exit(
                print_records(
                    inputs,
                    request.hosts,
                    request.output_format,
                    limits,
                    console,
                    targets,
                    request.verbose,
                )
            )
        raise typer.Exit(
            print_traces(
                request.paths, request.output_format, limits, console, targets, request.verbose
            )
        )
    if request.output_format == "table" and not request.classic:
        sound = show_run(runs[0], targets, console, options.detail(request.verbose, request.quiet))
    else:
        sound = print_run(runs[0], request.output_format, request.classic, targets, console)
    raise typer.Exit(0 if sound else 1)


def _figure_formats(text: str | None) -> tuple[str, ...]:
    """The formats that --figures names; raises DpscopeError for another."""
    if text is None:
        return DEFAULT_FORMATS
    formats = tuple(dict.fromkeys(text.split(",")))
    supported = ("png", "svg", "pdf")
    if unknown := [given for given in formats if given not in supported]:
        raise DpscopeError(
            f"--figures {text}: {unknown[0]!r} is no format; {choose_from(unknown[0], supported)}"
        )
    return formats


def runs_among(paths: list[Path]) -> list[Path]:
    """The run folder, if one was named; raises DpscopeError where another path was named, too."""
    runs = [path for path in paths if _is_run(path)]
    for path in paths:
        if runs and not path.exists():
            raise DpscopeError(f"{path} does not exist; {runs[0]} is a run folder: give it alone")
    if runs and len(paths) > 1:
        raise DpscopeError(f"{runs[0]} is a run folder: give it alone, or trace files alone")
    return runs


def _is_run(path: Path) -> bool:
    """Whether a path is read as a run; raises DpscopeError for a folder of dpscope's that cannot
    be.
    """
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
