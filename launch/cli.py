"""The `dpscope` command. The one module that joins launch and analysis, each imported only when its command runs."""

import contextlib
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from dpscope.profiling.run_store import DpscopeError, is_run_folder

if TYPE_CHECKING:
    from dpscope.analysis.report import Report
    from dpscope.analysis.run_analysis import RunData

OutputFormat = Literal["table", "json", "csv", "markdown", "latex"]
DEFAULT_OUT = Path("runs/default")

app = typer.Typer(
    help="Measure what data-parallel training costs on this machine, and where the time goes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point: a user's mistake is one line on standard error and exit status 2."""
    try:
        app()
    except DpscopeError as error:
        sys.stderr.write(f"dpscope: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader of the output went away: `dpscope analyze RUN | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except PermissionError as error:
        sys.stderr.write(f"dpscope: cannot write {error.filename}: {error.strerror}; choose another folder\n")
        sys.exit(2)


@app.command()
def run(
    strategy: Annotated[str | None, typer.Option(help="single,dp,ddp or some of them")] = None,
    devices: Annotated[str | None, typer.Option(help="device counts, such as 1,2,4")] = None,
    batch_size: Annotated[
        str | None,
        typer.Option(help="per device (weak) or global (strong): 32,128, or 32x4 for 32, 128, 512, ..."),
    ] = None,
    scaling: Annotated[str | None, typer.Option(help="weak, strong or both")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="resnet18_cifar, a torchvision model, or your own package.module:function"),
    ] = None,
    data: Annotated[str | None, typer.Option(help="synthetic, fake or cifar10")] = None,
    data_dir: Annotated[str | None, typer.Option(help="where cifar10 lies")] = None,
    download: Annotated[bool | None, typer.Option("--download/--no-download", help="fetch cifar10")] = None,
    samples: Annotated[int | None, typer.Option(help="samples an epoch of synthetic and fake data")] = None,
    workers: Annotated[int | None, typer.Option(help="loader workers per process")] = None,
    workers_total: Annotated[int | None, typer.Option(help="loader workers per cell, shared by its processes")] = None,
    pin_memory: Annotated[bool | None, typer.Option("--pin-memory/--no-pin-memory")] = None,
    amp: Annotated[str | None, typer.Option(help="off, bf16 or fp16")] = None,
    lr: Annotated[float | None, typer.Option(help="SGD's learning rate")] = None,
    momentum: Annotated[float | None, typer.Option(help="SGD's momentum")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="SGD's weight decay")] = None,
    warmup: Annotated[int | None, typer.Option(help="untimed steps before anything is measured, 5 or more")] = None,
    steps: Annotated[int | None, typer.Option(help="timed steps per repeat")] = None,
    epochs: Annotated[int | None, typer.Option(help="whole timed epochs instead, after one untimed")] = None,
    traced_steps: Annotated[int | None, typer.Option(help="whole traced steps; one more is traced")] = None,
    repeats: Annotated[int | None, typer.Option(help="interleaved repeats of every cell")] = None,
    seed: Annotated[int | None, typer.Option(help="of weights and data")] = None,
    timeout: Annotated[float | None, typer.Option(help="seconds one cell's job may take")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cuda or cpu")] = None,
    config: Annotated[Path | None, typer.Option(help="a TOML file with the same settings; flags win")] = None,
    link_gbps: Annotated[float | None, typer.Option(help="the link's GB/s one way, for the ring model")] = None,
    out: Annotated[Path, typer.Option(help="the run folder; cells already done there are kept")] = DEFAULT_OUT,
    fresh: Annotated[bool, typer.Option("--fresh", help="measure every cell again")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan, its estimates and commands only")] = False,
) -> None:
    """Run single, DP and DDP under torchrun, trace them, compare, report."""
    flags = {name: value for name, value in locals().items() if name not in _NOT_SETTINGS and value is not None}
    _check_link(link_gbps)
    from dpscope.launch.run_config import load_config
    from dpscope.launch.sweep import describe_plan, run_sweep

    console = Console()
    settings = load_config(config, flags)
    if dry_run:
        describe_plan(settings, out, console, fresh)
        return
    outcome = run_sweep(settings, out, fresh, console)
    sound = False
    try:
        sound = _report(out, link_gbps, console)
    except DpscopeError as error:  # the settings were sound: what failed, failed while measuring
        if outcome.ok:
            raise
        console.print(f"\n{error}", style="bold red", highlight=False, soft_wrap=True)
    raise typer.Exit(0 if outcome.ok and sound else 1)


_NOT_SETTINGS = ("config", "link_gbps", "out", "fresh", "dry_run")


def _check_link(link_gbps: float | None) -> None:
    if link_gbps is not None and not (math.isfinite(link_gbps) and link_gbps > 0):
        raise DpscopeError(f"--link-gbps {link_gbps:g}: must be above 0; give the link's GB/s one way")


@app.command()
def analyze(
    paths: Annotated[list[Path], typer.Argument(help="a run folder, or trace files and folders of them")],
    output_format: Annotated[OutputFormat, typer.Option("--format", help="what to print")] = "table",
    classic: Annotated[bool, typer.Option("--tables", help="the three classic tables of a run")] = False,
    link_gbps: Annotated[float | None, typer.Option(help="the link's GB/s one way, for the ring model")] = None,
    max_bytes: Annotated[int | None, typer.Option(help="read no more of a trace than this, uncompressed")] = None,
) -> None:
    """Read a run folder or torch.profiler traces: communication total, hidden, exposed, waiting, transferring."""
    _check_link(link_gbps)
    if max_bytes is not None and max_bytes < 1:
        raise DpscopeError(f"--max-bytes {max_bytes}: must be 1 or more")
    console = Console()
    runs = [path for path in paths if is_run_folder(path)]
    if runs and len(paths) > 1:
        raise DpscopeError(f"{runs[0]} is a run folder: give it alone, or trace files alone")
    if len(paths) == 1 and (is_run_folder(paths[0]) or (paths[0] / "cells").is_dir()):
        if output_format == "table" and not classic:
            sound = _report(paths[0], link_gbps, console)
        else:
            sound = _print_run(paths[0], output_format, classic, link_gbps, console)
    else:
        if classic:
            raise DpscopeError("--tables needs a run folder: trace files alone hold no epochs; leave it away")
        sound = _print_traces(paths, output_format, max_bytes, console)
    raise typer.Exit(0 if sound else 1)


def _report(out: Path, link_gbps: float | None, console: Console) -> bool:
    """Analyze a run, write its report, print its tables; whether nothing failed."""
    from dpscope.analysis.report import headline, make_report, setting, text_tables, write_report
    from dpscope.analysis.tables import missing_reasons
    from dpscope.analysis.terminal import print_findings, print_missing, print_table
    from dpscope.analysis.units import sentence

    report = make_report(_load(out, console), link_gbps)
    page = write_report(report)
    console.print(f"\n[bold]{sentence(headline(report))}[/]", highlight=False)
    console.print(setting(report), style="dim", highlight=False)
    for table in text_tables(report):
        print_table(console, table)
    print_missing(console, missing_reasons(report.comparison))
    in_tables = ("communication_measured", "estimates")  # said again in the report, in words
    print_findings(console, [finding for finding in report.findings if finding.code not in in_tables])
    console.print(f"\nReport: {page}", highlight=False, soft_wrap=True)
    return report.sound


def _load(out: Path, console: Console) -> "RunData":
    from dpscope.analysis.run_analysis import load_run

    with console.status("Reading traces") as status:
        return load_run(out, lambda cell: status.update(f"Reading traces: {cell}"))


def _print_run(
    path: Path, output_format: OutputFormat, classic: bool, link_gbps: float | None, console: Console
) -> bool:
    from dpscope.analysis import tables
    from dpscope.analysis.classic_tables import classic_tables
    from dpscope.analysis.report import make_report, text_tables
    from dpscope.analysis.run_output import run_json
    from dpscope.analysis.terminal import print_table

    loaded = _load(path, Console(stderr=True))
    report: Report = make_report(loaded, link_gbps)
    if output_format == "json":
        sys.stdout.write(run_json(report) + "\n")
        return report.sound
    if output_format == "csv" and not classic:
        sys.stdout.write(tables.comparison_csv(report.comparison))
        return report.sound
    shown = classic_tables(loaded, report.comparison, link_gbps) if classic else text_tables(report)
    for table in shown:
        if output_format == "table":
            print_table(console, table)
        else:
            sys.stdout.write(tables.render(table, output_format) + "\n")
    return report.sound


def _print_traces(paths: list[Path], output_format: OutputFormat, max_bytes: int | None, console: Console) -> bool:
    from dpscope.analysis import tables, trace_output
    from dpscope.analysis.terminal import print_findings, print_table
    from dpscope.analysis.trace_analysis import analyze_traces
    from dpscope.analysis.trace_chunks import DEFAULT_MAX_BYTES

    analysis = analyze_traces(paths, max_bytes or DEFAULT_MAX_BYTES)
    if output_format == "json":
        sys.stdout.write(trace_output.to_json(analysis) + "\n")
    elif output_format == "csv":
        sys.stdout.write(trace_output.to_csv(analysis))
    else:
        for table in trace_output.to_tables(analysis):
            if output_format == "table":
                print_table(console, table)
            else:
                sys.stdout.write(tables.render(table, output_format) + "\n")
        if analysis.findings and output_format == "table":
            print_findings(console, analysis.findings)
    return not any(finding.severity == "error" for finding in analysis.findings)


@app.command()
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
    from dpscope.analysis.run_comparison import change_table, compare_runs, parse_share, regressions, setting_findings
    from dpscope.analysis.tables import render
    from dpscope.analysis.terminal import print_findings, print_table

    share = parse_share(fail_over)
    console, progress = Console(), Console(stderr=True)
    runs = _load(before, progress), _load(after, progress)
    changes = compare_runs(*runs)
    worse = regressions(changes, share)
    if output_format != "table":
        sys.stdout.write(render(change_table(changes), output_format))
    else:
        print_table(console, change_table(changes))
        if findings := setting_findings(*runs):
            print_findings(console, findings)
        cells = ", ".join(change.cell for change in worse)
        console.print(f"\nSlower by more than {fail_over}: {cells or 'none'}", highlight=False)
    raise typer.Exit(1 if worse else 0)


@app.command()
def tensorboard(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    host: Annotated[str, typer.Option(help="the address to listen on")] = "localhost",
    port: Annotated[int, typer.Option(help="0 takes a free one")] = 6006,
    link_gbps: Annotated[float | None, typer.Option(help="the link's GB/s one way, for the ring model")] = None,
) -> None:
    """Write a run's TensorBoard folder and serve it: HParams, Text, Images, Scalars, and the traces."""
    _check_link(link_gbps)
    from dpscope.analysis.report import make_report
    from dpscope.analysis.tensorboard_export import export_tensorboard
    from dpscope.launch.tensorboard_server import serve

    console = Console()
    folder = export_tensorboard(make_report(_load(run, Console(stderr=True)), link_gbps))

    def announce(address: str) -> None:
        console.print(f"TensorBoard: {address} (folder {folder}; Ctrl-C ends it)", highlight=False, soft_wrap=True)

    with contextlib.suppress(KeyboardInterrupt):
        serve(folder, host, port, announce)


@app.command()
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
    from dpscope.analysis.published_report import run_estimate

    sys.stdout.write(run_estimate(table, claims, output_format).rstrip() + "\n")


@app.command()
def doctor() -> None:
    """Check devices, driver, backends, peer access, shared memory, the tracer and disk space, in seconds."""
    from dpscope.launch.doctor import print_checks, run_doctor

    raise typer.Exit(0 if print_checks(run_doctor(), Console()) else 1)


if __name__ == "__main__":
    main()
