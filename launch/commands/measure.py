"""The commands that measure this machine: `dpscope run`, `dpscope calibrate`, `dpscope doctor`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.ending import exit_after
from dpscope.launch.commands.several_nodes import on_all_nodes, this_node
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from dpscope.profiling.mirrors.wandb_cells import CellMirror


def run(
    strategy: options.Strategy = None,
    devices: options.Devices = None,
    batch_size: options.BatchSize = None,
    scaling: options.Scaling = None,
    model: options.Model = None,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    download: options.Download = None,
    samples: options.SamplesPerEpoch = None,
    workers: options.Workers = None,
    workers_total: options.WorkersTotal = None,
    pin_memory: options.PinMemory = None,
    transforms: options.Transforms = None,
    amp: options.Amp = None,
    lr: options.Lr = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    warmup: options.Warmup = None,
    steps: options.Steps = None,
    epochs: options.Epochs = None,
    traced_steps: options.TracedSteps = None,
    repeats: options.Repeats = None,
    detect: options.Detect = None,
    detect_limit: options.DetectLimit = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    device: options.Device = None,
    comm_hook: options.CommHook = None,
    nccl_engine: options.NcclEngines = None,
    bucket_mb: options.BucketMb = None,
    overlap: options.Overlap = None,
    gradient_as_bucket_view: options.GradientAsBucketView = None,
    static_graph: options.StaticGraph = None,
    ddp_args: options.DdpArgs = None,
    accumulate: options.Accumulate = None,
    compile: options.Compile = None,
    broadcast_buffers: options.BroadcastBuffers = None,
    ddp_alone: options.DdpAlone = None,
    config: options.Config = None,
    calibrate: options.Calibrate = None,
    link: options.Link = None,
    target_efficiency: options.TargetEfficiency = None,
    published: options.Published = None,
    out: options.Out = options.DEFAULT_OUT,
    nodes: options.Nodes = None,
    node_rank: options.NodeRank = None,
    rendezvous: options.Rendezvous = None,
    wait_for_nodes: options.WaitForNodes = None,
    fresh: options.Fresh = False,
    dry_run: options.DryRun = False,
    verbose: options.Verbose = False,
    quiet: options.Quiet = False,
    open_page: options.OpenPage = False,
    wandb: options.Wandb = False,
    wandb_online: options.WandbOnline = False,
) -> None:
    """Run single, DP and DDP under torchrun, trace them, compare, report."""
    given = {name: value for name, value in locals().items() if value}
    flags = {
        name: value for name, value in locals().items() if name not in (*_NOT_SETTINGS, "given") and value is not None
    }
    options.check_seconds("--detect-limit", detect_limit)
    detail = options.detail(verbose, quiet)
    from rich.console import Console

    from dpscope.launch.measuring.run import describe_plan, run_sweep
    from dpscope.launch.planning.cells import check_idle_here
    from dpscope.launch.planning.run_config import load_config

    console = Console(markup=False)
    settings = load_config(config, flags)
    place = this_node(nodes, node_rank, rendezvous, dry_run)
    check_idle_here(settings, flags, place.count if place is not None else 1)
    if detect is not None:
        from dpscope.launch.commands.detect import first_round, parse_change, run_until_detected

        change, settings = parse_change(detect), first_round(settings)
    if dry_run:
        describe_plan(settings, out, console, fresh, place.count if place is not None else 1)
        return
    mirror = _cell_mirror(wandb_online) if wandb or wandb_online else None
    with on_all_nodes(place, out, given, settings.workload.device, console) as starter:
        if detect is None:
            outcome = run_sweep(settings, out, fresh, console, starter=starter)
        else:
            limit_s = options.DETECT_LIMIT_S if detect_limit is None else detect_limit
            outcome = run_until_detected(settings, out, fresh, console, change, limit_s, starter)
        starter.dismiss(outcome.exit_status, outcome.lost or "")
    from dpscope.analysis.output.analyze import Targets, show_run

    def shown() -> bool:
        sound = show_run(out, Targets(), console, detail, open_page=open_page)
        if mirror is not None:
            from dpscope.analysis.output.analyze import report_of
            from dpscope.analysis.output.cell_summaries import cell_summaries

            mirror.write(out, cell_summaries(report_of(out, Targets())))
        return sound

    exit_after(outcome, shown, console)


def _cell_mirror(online: bool) -> "CellMirror":
    """Imported only where it is asked for."""
    from dpscope.profiling.mirrors.wandb_cells import cell_mirror

    return cell_mirror(online)


_NOT_SETTINGS = (
    *("detect", "detect_limit", "config", "out", "fresh", "dry_run", "verbose", "quiet", "open_page"),
    *("wandb", "wandb_online", "nodes", "node_rank", "rendezvous", "wait_for_nodes"),
)


def calibrate(
    devices: Annotated[str | None, typer.Option(help="device counts, such as 2,4; 2x4 is 2 nodes with 4 each")] = None,
    collectives: Annotated[str | None, typer.Option(help="all_reduce,broadcast,... or some of them")] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16, bfloat16 or float64")] = "float32",
    min_bytes: Annotated[str, typer.Option(help="smallest message")] = "4KiB",
    max_bytes: Annotated[str, typer.Option(help="largest message; sizes double in between")] = "256MiB",
    iterations: Annotated[int, typer.Option(help="timed calls of each size")] = 20,
    warmup: Annotated[int, typer.Option(help="untimed calls of each size")] = 5,
    timeout: Annotated[float, typer.Option(help="seconds the job may take")] = 900.0,
    device: Annotated[str, typer.Option(help="auto, cuda or cpu")] = "auto",
    link: options.Link = None,
    from_nccl_tests: Annotated[
        bool, typer.Option("--from-nccl-tests", help="read nccl-tests' output, the LOGs, instead of measuring")
    ] = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="its in-place columns")] = False,
    predict: Annotated[
        str | None, typer.Option(help="measure nothing: predict collectives on these device counts, such as 64,256")
    ] = None,
    output_format: Annotated[
        Literal["table", "json"], typer.Option("--format", help="with --predict: what to print")
    ] = "table",
    nodes: options.Nodes = None,
    node_rank: options.NodeRank = None,
    rendezvous: options.Rendezvous = None,
    wait_for_nodes: options.WaitForNodes = None,
    out: Annotated[Path, typer.Option(help="a run folder, or a .json file")] = options.DEFAULT_OUT,
    logs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[LOG]...", help="with --from-nccl-tests; with --predict also a calibration"),
    ] = None,
) -> None:
    """Time this machine's collectives by message size and fit what they cost; predictions use it."""
    given = {name: value for name, value in locals().items() if value}
    stated = options.read_link(link)
    from rich.console import Console

    from dpscope.analysis.costs.calibrated import rate_between, rate_within
    from dpscope.analysis.costs.calibration_files import calibration_path
    from dpscope.analysis.costs.nccl_tests_log import calibration_from_logs
    from dpscope.analysis.report.calibration import calibration_tables, save_calibration
    from dpscope.analysis.report.nccl_tables import calibration_chapter
    from dpscope.analysis.text.terminal import print_findings, print_table
    from dpscope.launch.calibration.run import run_calibration
    from dpscope.launch.calibration.settings import calibration_settings
    from dpscope.launch.jobs.out_folder import check_calibration_place
    from dpscope.profiling.store.folders import is_run_folder

    if predict is not None:
        return _predict_collectives(predict, logs or [out], from_nccl_tests, in_place, output_format)
    if logs and not from_nccl_tests:
        raise DpscopeError(f"{logs[0]}: a measurement takes no file; add --from-nccl-tests to read logs")
    check_calibration_place(out, calibration_path(out))
    console = Console(markup=False)
    if from_nccl_tests:
        measured = calibration_from_logs(logs or [], in_place, stated)
    else:
        place = this_node(nodes, node_rank, rendezvous)
        settings = calibration_settings(
            nodes=place.count if place is not None else 1,
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
        folder = calibration_path(out).parent
        with on_all_nodes(place, folder, given, device, console) as starter:
            measured = run_calibration(settings, console, stated, starter, folder)
            starter.dismiss(0)
    fitted, path = save_calibration(measured, out)
    for table in calibration_tables(fitted):
        print_table(console, table)
    if (between := rate_between(fitted)) is not None:
        within = rate_within(fitted) or "not timed"
        console.print(f"Rate between nodes: {between}; within a node: {within}", highlight=False)
    if findings := (*fitted.findings, *calibration_chapter(fitted).findings):
        print_findings(console, findings)
    console.print(f"\nCalibration: {path}; figure: {path.with_suffix('.png')}", highlight=False, soft_wrap=True)
    if is_run_folder(out):
        console.print(f"Next: dpscope analyze {out}", highlight=False, soft_wrap=True)
    elif path != out:
        console.print(f"Next: dpscope run --out {out}, whose report then predicts", highlight=False, soft_wrap=True)


def doctor() -> None:
    """Check devices, driver, backends, peer access, shared memory, the tracer and disk space, in seconds."""
    from rich.console import Console

    from dpscope.launch.commands.doctor import print_checks, run_doctor

    raise typer.Exit(0 if print_checks(run_doctor(), Console(markup=False)) else 1)


def _predict_collectives(
    counts: str, paths: list[Path], from_nccl_tests: bool, in_place: bool, output_format: Literal["table", "json"]
) -> None:
    """From one calibration, or from logs of several counts."""
    from rich.console import Console

    from dpscope.analysis.costs.calibration_files import costs_at
    from dpscope.analysis.costs.nccl_tests_log import calibration_from_logs
    from dpscope.analysis.output.collective_forecast import parse_counts, print_forecasts

    asked = parse_counts(counts)
    if from_nccl_tests:
        calibration = calibration_from_logs(paths, in_place)
    elif len(paths) == 1:
        calibration = costs_at(paths[0], "--predict")
    else:
        raise DpscopeError(f"{paths[1]}: --predict takes one calibration; add --from-nccl-tests to read logs")
    print_forecasts(calibration, asked, output_format, Console(markup=False))
