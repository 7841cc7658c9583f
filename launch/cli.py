"""The `dpscope` command. The one module that joins launch and analysis, each imported only when its command runs."""

import contextlib
import functools
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from dpscope.launch.commands import options
from dpscope.launch.commands.learning import equal, train
from dpscope.launch.commands.option_defaults import DefaultsInHelp
from dpscope.launch.jobs.stop_request import StoppedError
from dpscope.profiling.records.equality import EQUALITY_FOLDER, EQUALITY_NAME, SETTINGS_NAME
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import MANIFEST_NAME, is_run_folder
from dpscope.profiling.store.training_folders import holds_epochs

app = typer.Typer(
    help="Measure what data-parallel training costs on this machine, and where the time goes.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


_command = functools.partial(app.command, cls=DefaultsInHelp)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("dpscope", "torch")))
        raise typer.Exit


@app.callback(no_args_is_help=True)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="dpscope's and torch's")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: a user's mistake is one line on standard error and exit status 2; Ctrl-C is 130."""
    try:
        app()
    except DpscopeError as error:
        sys.stderr.write(f"dpscope: {error}\n")
        sys.exit(error.exit_status if isinstance(error, StoppedError) else 2)
    except BrokenPipeError:  # the reader of the output went away: `dpscope analyze RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except PermissionError as error:
        sys.stderr.write(f"dpscope: cannot write {error.filename}: {error.strerror}; choose another folder\n")
        sys.exit(2)


@_command()
def run(
    strategy: options.Strategy = None,
    devices: options.Devices = None,
    batch_size: options.BatchSize = None,
    scaling: options.Scaling = None,
    model: options.Model = None,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    download: options.Download = None,
    samples: options.Samples = None,
    workers: options.Workers = None,
    workers_total: options.WorkersTotal = None,
    pin_memory: options.PinMemory = None,
    amp: options.Amp = None,
    lr: options.Lr = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    warmup: options.Warmup = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    traced_steps: options.TracedSteps = None,
    repeats: options.Repeats = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    device: options.Device = None,
    comm_hook: options.CommHook = None,
    bucket_mb: options.BucketMb = None,
    overlap: options.Overlap = None,
    gradient_as_bucket_view: options.GradientAsBucketView = None,
    static_graph: options.StaticGraph = None,
    accumulate: options.Accumulate = None,
    broadcast_buffers: options.BroadcastBuffers = None,
    config: options.Config = None,
    link_gbps: options.LinkGbps = None,
    target_efficiency: options.TargetEfficiency = None,
    out: Annotated[Path, typer.Option(help="the run folder; cells already done there are kept")] = options.DEFAULT_OUT,
    fresh: options.Fresh = False,
    dry_run: options.DryRun = False,
) -> None:
    """Run single, DP and DDP under torchrun, trace them, compare, report."""
    flags = {name: value for name, value in locals().items() if name not in _NOT_SETTINGS and value is not None}
    options.check_numbers(link_gbps, target_efficiency)
    from dpscope.launch.measuring.run import describe_plan, run_sweep
    from dpscope.launch.planning.run_config import load_config

    console = Console()
    settings = load_config(config, flags)
    if dry_run:
        describe_plan(settings, out, console, fresh)
        return
    outcome = run_sweep(settings, out, fresh, console)
    from dpscope.analysis.output.analyze import Targets, show_run

    sound = False
    try:
        sound = show_run(out, Targets(link_gbps, target_efficiency), console)
    except DpscopeError as error:  # the settings were sound: what failed, failed while measuring
        if outcome.ok:
            raise
        console.print(f"\n{error}", style="bold red", highlight=False, soft_wrap=True)
    raise typer.Exit(outcome.exit_status or int(not sound))


_NOT_SETTINGS = ("config", "link_gbps", "target_efficiency", "out", "fresh", "dry_run")


@_command()
def analyze(
    paths: Annotated[list[Path], typer.Argument(help="a run folder, or trace files and folders of them")],
    output_format: Annotated[options.OutputFormat, typer.Option("--format", help="what to print")] = "table",
    classic: Annotated[bool, typer.Option("--tables", help="the three classic tables of a run")] = False,
    link_gbps: options.LinkGbps = None,
    target_efficiency: options.TargetEfficiency = None,
    target_accuracy: options.TargetAccuracy = None,
    max_bytes: options.MaxBytes = None,
) -> None:
    """Read a run folder or torch.profiler traces: communication total, hidden, exposed, waiting, transferring."""
    options.check_numbers(link_gbps, target_efficiency, target_accuracy)
    options.check_max_bytes(max_bytes)
    runs = [path for path in paths if _is_run(path)]
    if runs and len(paths) > 1:
        raise DpscopeError(f"{runs[0]} is a run folder: give it alone, or trace files alone")
    if classic and not runs:
        raise DpscopeError("--tables needs a run folder: trace files alone hold no epochs; leave it away")
    from dpscope.analysis.output.analyze import Targets, print_run, print_traces, show_run

    console = Console()
    if not runs:
        raise typer.Exit(print_traces(paths, output_format, max_bytes, console))
    targets = Targets(link_gbps, target_efficiency, target_accuracy)
    if output_format == "table" and not classic:
        sound = show_run(runs[0], targets, console)
    else:
        sound = print_run(runs[0], output_format, classic, targets, console)
    raise typer.Exit(0 if sound else 1)


def _is_run(path: Path) -> bool:
    """Whether a path is to be read as a run; raises DpscopeError for a folder of dpscope's that cannot be."""
    if is_run_folder(path) or holds_epochs(path):
        return True
    if (path / "cells").is_dir():
        raise DpscopeError(
            f"{path}: {MANIFEST_NAME} is missing, which says what its cells are; put it back, measure the run again, or "
            f"give one repeat's traces, such as {path}/cells/CELL/repeat0/traces"
        )
    if (path / EQUALITY_FOLDER / SETTINGS_NAME).exists():
        raise DpscopeError(
            f"{path} holds a comparison by dpscope equal, without traces: read {path / EQUALITY_NAME} or the table it printed"
        )
    return False


@_command()
def compare(
    before: Annotated[Path, typer.Argument(help="a run folder")],
    after: Annotated[Path, typer.Argument(help="another, of the same cells")],
    fail_over: Annotated[
        str, typer.Option(help="exit with 1 if a step got slower beyond noise by more than this")
    ] = "5%",
    output_format: Annotated[
        Literal["table", "csv", "markdown", "latex"], typer.Option("--format", help="what to print")
    ] = "table",
) -> None:
    """Say what got faster or slower between two runs, beyond noise, per cell and per component."""
    from dpscope.analysis.output.analyze import print_comparison
    from dpscope.analysis.runs.changes import parse_share

    sound = print_comparison(before, after, parse_share(fail_over), output_format, Console())
    raise typer.Exit(0 if sound else 1)


@_command()
def merge(
    paths: Annotated[list[Path], typer.Argument(help="a run folder, or the traces of one job's ranks")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the merged trace, *.json or *.json.gz")],
    cell: Annotated[str | None, typer.Option(help="which cell of a run, such as ddp-d2-b32")] = None,
    repeat: Annotated[int | None, typer.Option(help="which repeat of it; the first unless told")] = None,
    max_bytes: options.MaxBytes = None,
) -> None:
    """Make one trace of all ranks for Perfetto: clocks aligned, communication, wait and transfer as tracks."""
    options.check_max_bytes(max_bytes)
    from dpscope.analysis.output.merge import print_merge

    raise typer.Exit(print_merge(paths, output, cell, repeat, max_bytes, Console()))


@_command()
def calibrate(
    devices: Annotated[str | None, typer.Option(help="device counts, such as 2,4")] = None,
    collectives: Annotated[str | None, typer.Option(help="all_reduce,broadcast,... or some of them")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16, bfloat16 or float64")] = "float32",
    min_bytes: Annotated[str, typer.Option(help="smallest message")] = "4KiB",
    max_bytes: Annotated[str, typer.Option(help="largest message; sizes double in between")] = "256MiB",
    iterations: Annotated[int, typer.Option(help="timed calls of each size")] = 20,
    warmup: Annotated[int, typer.Option(help="untimed calls of each size")] = 5,
    timeout: Annotated[float, typer.Option(help="seconds the job may take")] = 900.0,
    device: Annotated[str, typer.Option(help="auto, cuda or cpu")] = "auto",
    link_gbps: Annotated[float | None, typer.Option(help="the link's GB/s one way, instead of what NVML tells")] = None,
    from_nccl_tests: Annotated[
        bool, typer.Option("--from-nccl-tests", help="read nccl-tests' output, the LOGs, instead of measuring")
    ] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="its in-place columns")] = False,
    out: Annotated[Path, typer.Option(help="a run folder, or a .json file")] = options.DEFAULT_OUT,
    logs: Annotated[list[Path] | None, typer.Argument(metavar="[LOG]...", help="with --from-nccl-tests")] = None,
) -> None:
    """Time this machine's collectives by message size and fit what they cost; predictions use it."""
    options.check_numbers(link_gbps)
    from dpscope.analysis.costs.nccl_tests_log import calibration_from_logs
    from dpscope.analysis.report.calibration import calibration_tables, save_calibration
    from dpscope.analysis.text.terminal import print_findings, print_table
    from dpscope.launch.calibration.run import run_calibration
    from dpscope.launch.calibration.settings import calibration_settings

    if logs and not from_nccl_tests:
        raise DpscopeError(f"{logs[0]}: a measurement takes no file; add --from-nccl-tests to read logs")
    console = Console()
    if from_nccl_tests:
        measured = calibration_from_logs(logs or [], in_place, link_gbps)
    else:
        settings = calibration_settings(
            device=device,
            devices=devices,
            collectives=collectives,
            dtype=dtype,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            iterations=iterations,
            warmup_iterations=warmup,
            timeout_s=timeout,
        )
        measured = run_calibration(settings, console, link_gbps)
    fitted, path = save_calibration(measured, out)
    for table in calibration_tables(fitted):
        print_table(console, table)
    if fitted.findings:
        print_findings(console, fitted.findings)
    console.print(f"\nCalibration: {path}; figure: {path.with_suffix('.png')}", highlight=False, soft_wrap=True)
    if is_run_folder(out):
        console.print(f"Next: dpscope analyze {out}", highlight=False, soft_wrap=True)
    elif path != out:
        console.print(f"Next: dpscope run --out {out}, whose report then predicts", highlight=False, soft_wrap=True)


@_command()
def tensorboard(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    host: Annotated[str, typer.Option(help="the address to listen on")] = "localhost",
    port: Annotated[int, typer.Option(help="0 takes a free one")] = 6006,
    link_gbps: options.LinkGbps = None,
) -> None:
    """Write a run's TensorBoard folder and serve it: HParams, Text, Images, Scalars (live of trainings), and the traces."""
    options.check_numbers(link_gbps)
    from dpscope.analysis.output.analyze import write_tensorboard
    from dpscope.launch.commands.tensorboard_server import serve

    console = Console()
    folder = write_tensorboard(run, link_gbps)

    def announce(address: str) -> None:
        console.print(f"TensorBoard: {address} (folder {folder}; Ctrl-C ends it)", highlight=False, soft_wrap=True)

    with contextlib.suppress(KeyboardInterrupt):
        serve(folder, host, port, announce)


@_command()
def estimate(
    table: Annotated[
        Path, typer.Argument(help="CSV of epoch times: strategy, batch_size, devices, epoch_seconds, ...")
    ],
    claims: Annotated[Path | None, typer.Option(help="CSV of values somebody derived from them, to be audited")] = None,
    output_format: Annotated[
        Literal["table", "json", "csv", "markdown"], typer.Option("--format", help="what to print")
    ] = "table",
) -> None:
    """Say what published or hand-timed epoch times can and cannot tell, without any trace."""
    from dpscope.analysis.published.report import run_estimate

    sys.stdout.write(run_estimate(table, claims, output_format).rstrip() + "\n")


@_command()
def doctor() -> None:
    """Check devices, driver, backends, peer access, shared memory, the tracer and disk space, in seconds."""
    from dpscope.launch.commands.doctor import print_checks, run_doctor

    raise typer.Exit(0 if print_checks(run_doctor(), Console()) else 1)


_command()(train)
_command()(equal)

if __name__ == "__main__":
    main()
