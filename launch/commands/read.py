"""The commands that read what is there: `dpscope analyze`, `compare`, `merge`, `tensorboard`, `estimate`."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpscope.analysis.text.text_table import OutputFormat
from dpscope.launch.commands import options
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from dpscope.profiling.records.links import LinkRate


def analyze(
    paths: Annotated[list[Path], typer.Argument(help="a run folder, or trace files and folders of them")],
    output_format: Annotated[OutputFormat, typer.Option("--format", help="what to print")] = "table",
    classic: Annotated[bool, typer.Option("--tables", help="the tables of data-parallel studies")] = False,
    link: options.Link = None,
    calibration: options.CalibrationFile = None,
    nccl_log: options.NcclLogs = None,
    report: options.ReportFolder = None,
    target_efficiency: options.TargetEfficiency = None,
    target_accuracy: options.TargetAccuracy = None,
    figures: options.Figures = None,
    max_bytes: options.MaxBytes = None,
    max_events: options.MaxEvents = None,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    open_page: options.OpenPage = False,
    topology: Annotated[
        Path | None,
        typer.Option(help="show waiting by switch: a file of hosts and their switches, or Slurm's topology.conf"),
    ] = None,
    hide_hosts: Annotated[bool, typer.Option("--hide-hosts", help="show numbers instead of host names")] = False,
) -> None:
    """Read a run folder or torch.profiler traces: communication total, hidden, exposed, waiting, transferring."""
    stated = options.read_link(link)
    options.check_targets(target_efficiency, target_accuracy)
    limits = options.read_limits(max_bytes, max_events)
    figure_formats = options.read_figures(figures)
    runs = runs_among(paths)
    detail = options.detail(verbose, quiet)
    from rich.console import Console

    console = Console(markup=False)
    if not runs:
        from dpscope.analysis.output.many_ranks import HostOptions
        from dpscope.analysis.output.traced_report import TraceRequest, print_traces

        hosts = HostOptions(topology, hide_hosts)
        logs = tuple(nccl_log or ())
        request = TraceRequest(stated, calibration, report, figure_formats, open_page, hosts, logs)
        raise typer.Exit(print_traces(paths, output_format, limits, console, request))
    from dpscope.analysis.output.analyze import Targets, print_run, show_run

    targets = Targets(stated, calibration, report, target_efficiency, target_accuracy, tuple(nccl_log or ()))
    if output_format == "table" and not classic:
        sound = show_run(runs[0], targets, console, detail, figure_formats, open_page)
    else:
        sound = print_run(runs[0], output_format, classic, targets, console)
    raise typer.Exit(0 if sound else 1)


def runs_among(paths: list[Path]) -> list[Path]:
    """The run folder, if one was named; raises DpscopeError where anything else was beside it."""
    runs = [path for path in paths if _is_run(path)]
    if runs and len(paths) > 1:
        raise DpscopeError(f"{runs[0]} is a run folder: give it alone, or trace files alone")
    return runs


def _is_run(path: Path) -> bool:
    """Whether a path is to be read as a run; raises DpscopeError for a folder of dpscope's that cannot be."""
    from dpscope.profiling.records.equality import EQUALITY_FOLDER, EQUALITY_NAME
    from dpscope.profiling.store.folders import MANIFEST_NAME, SETTINGS_NAME, is_run_folder
    from dpscope.profiling.store.training_folders import holds_epochs

    if is_run_folder(path) or holds_epochs(path):
        return True
    if (path / "cells").is_dir():
        raise DpscopeError(
            f"{path}: {MANIFEST_NAME} is missing or not dpscope's, which says what its cells are; put it back, measure the run "
            f"again, or give one repeat's traces, such as {path}/cells/CELL/repeat0/traces"
        )
    if (path / EQUALITY_FOLDER / SETTINGS_NAME).exists():
        raise DpscopeError(
            f"{path} holds a comparison by dpscope equal, without traces: read {path / EQUALITY_NAME} or the table it printed"
        )
    return False


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="run folders of the same cells, or the traces of two jobs; of three runs or more the last is judged"
        ),
    ],
    fail_over: Annotated[
        str | None, typer.Option(help="exit with 1 if a step got slower beyond noise by more than this")
    ] = None,
    output_format: Annotated[
        Literal["table", "json", "csv", "markdown", "latex", "github", "junit"],
        typer.Option("--format", help="what to print; github: for a job's summary page"),
    ] = "table",
    force: Annotated[
        bool,
        typer.Option("--force", help="judge although settings, machines or models differ, else exit status 3 or 2"),
    ] = False,
    by: Annotated[
        Literal["time", "commit"] | None,
        typer.Option(
            help="order of three runs or more: when they were begun (unless told), or when their commits were made"
        ),
    ] = None,
) -> None:
    """Say what got faster or slower between two runs; exit status 1: slower beyond noise, 3: cannot be judged."""
    from rich.console import Console

    from dpscope.analysis.output.changes import print_comparison, print_history
    from dpscope.analysis.runs.compare import parse_share

    if len(paths) < 2:
        raise DpscopeError(f"{paths[0]}: one run has nothing to be compared with; name another, or several")
    share = None if fail_over is None else parse_share(fail_over)
    if len(paths) > 2:
        raise typer.Exit(print_history(paths, share, output_format, Console(markup=False), force, by or "time"))
    raise typer.Exit(print_comparison(paths[0], paths[1], share, output_format, Console(markup=False), force))


def merge(
    paths: Annotated[list[Path], typer.Argument(help="a run folder, or the traces of one job's ranks")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the merged trace, *.json or *.json.gz")],
    cell: Annotated[str | None, typer.Option(help="which cell of a run, such as ddp-d2-b32")] = None,
    repeat: Annotated[int | None, typer.Option(help="which repeat of it; the first unless told")] = None,
    max_bytes: options.MaxBytes = None,
    max_events: options.MaxEvents = None,
) -> None:
    """Make one trace of all ranks for Perfetto: clocks aligned, communication, wait and transfer as tracks."""
    limits = options.read_limits(max_bytes, max_events)
    from rich.console import Console

    from dpscope.analysis.output.merge import print_merge

    raise typer.Exit(print_merge(paths, output, cell, repeat, limits, Console(markup=False)))


def tensorboard(
    paths: Annotated[list[Path], typer.Argument(help="a run folder, or trace files and folders of them")],
    host: Annotated[str, typer.Option(help="the address to listen on")] = "localhost",
    port: Annotated[int, typer.Option(help="0 takes a free one")] = 6006,
    link: options.Link = None,
    out: Annotated[
        Path | None, typer.Option(help="of traces: where the folder goes; a run's lies in the run's own")
    ] = None,
) -> None:
    """Write a run's TensorBoard folder and serve it: HParams, Text, Images, Scalars (live of trainings), and the traces."""
    stated = options.read_link(link)
    from rich.console import Console

    from dpscope.launch.commands.tensorboard_server import check_address, serve

    check_address(host, port)
    console = Console(markup=False)
    console.print("Writing the TensorBoard folder ...", highlight=False)
    folder = _tensorboard_folder(paths, stated, out)
    console.print("Starting TensorBoard ...", highlight=False)

    def announce(address: str) -> None:
        console.print(f"TensorBoard: {address} (folder {folder}; Ctrl-C ends it)", highlight=False, soft_wrap=True)

    with contextlib.suppress(KeyboardInterrupt):
        serve(folder, host, port, announce)


def _tensorboard_folder(paths: list[Path], stated: "LinkRate | None", out: Path | None) -> Path:
    """Written of the one run that is named, or of the traces."""
    if not (runs := runs_among(paths)):
        from dpscope.analysis.output.traced_report import TraceRequest, export_traces

        return export_traces(paths, TraceRequest(stated), out)
    from dpscope.analysis.output.analyze import write_tensorboard

    return write_tensorboard(runs[0], stated)


def estimate(
    table: Annotated[
        Path, typer.Argument(help="CSV of epoch times: strategy, batch_size, devices, epoch_seconds, ...")
    ],
    claims: Annotated[
        Path | None,
        typer.Option(help="CSV of values derived from them, to audit: quantity, method, printed_value, unit, ..."),
    ] = None,
    output_format: Annotated[
        Literal["table", "json", "csv", "markdown"], typer.Option("--format", help="what to print")
    ] = "table",
) -> None:
    """Say what published or hand-timed epoch times can and cannot tell, and audit what was derived from them."""
    from dpscope.analysis.epoch_times.report import run_estimate

    sys.stdout.write(run_estimate(table, output_format, claims).rstrip() + "\n")
