"""The commands that train: `dpscope train` and `dpscope equal`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.ending import exit_after
from dpscope.launch.commands.several_nodes import on_all_nodes, this_node

if TYPE_CHECKING:
    from dpscope.profiling.mirrors.mirror import TrainingMirror
    from dpscope.profiling.records.training import TrainConfig


def train(
    strategy: options.Strategy = None,
    devices: options.Devices = None,
    batch_size: options.GlobalBatchSize = None,
    scaling: options.TrainScaling = None,
    epochs: options.TrainEpochs = None,
    seeds: options.Seeds = None,
    model: options.TrainModel = None,
    data: options.TrainData = None,
    data_dir: options.DataDir = None,
    download: options.Download = None,
    augment: options.Augment = None,
    samples: options.FakeSamples = None,
    lr: options.Lr = None,
    learning_rate_scaling: options.LearningRateScaling = None,
    warmup_epochs: options.WarmupEpochs = None,
    milestones: options.Milestones = None,
    gamma: options.Gamma = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    label_smoothing: options.LabelSmoothing = None,
    eval_batch_size: options.EvalBatchSize = None,
    amp: options.Amp = None,
    workers: options.Workers = None,
    workers_total: options.WorkersTotal = None,
    pin_memory: options.PinMemory = None,
    transforms: options.Transforms = None,
    checkpoint_steps: options.CheckpointSteps = None,
    max_restarts: options.MaxRestarts = None,
    timeout: options.TrainTimeout = None,
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
    config: options.Config = None,
    target_accuracy: options.TargetAccuracy = None,
    wandb: options.Wandb = False,
    wandb_online: options.WandbOnline = False,
    nodes: options.Nodes = None,
    node_rank: options.NodeRank = None,
    rendezvous: options.Rendezvous = None,
    wait_for_nodes: options.WaitForNodes = None,
    out: options.Out = options.DEFAULT_OUT,
    resume_from: options.ResumeFrom = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="train everything again")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the plan and the commands only")] = False,
) -> None:
    """Train single, DP and DDP on the same batches, with the same settings; losses and accuracies per epoch."""
    given = {name: value for name, value in locals().items() if value}
    flags = {
        name: value for name, value in locals().items() if name not in (*_NOT_SETTINGS, "given") and value is not None
    }
    from rich.console import Console

    from dpscope.launch.training.planned_jobs import describe_trainings
    from dpscope.launch.training.run import run_trainings
    from dpscope.launch.training.settings import load_train_config

    options.check_targets(target_accuracy=target_accuracy)
    settings = load_train_config(config, flags)
    console = Console(markup=False)
    place = this_node(nodes, node_rank, rendezvous, dry_run)
    if dry_run:
        describe_trainings(settings, out, console, fresh, resume_from, place.count if place is not None else 1)
        return
    with on_all_nodes(place, out, given, settings.workload.device, console) as starter:
        mirrors = _mirrors(out, settings, wandb, wandb_online)
        outcome = run_trainings(settings, out, fresh, console, mirrors, resume_from, starter)
        starter.dismiss(outcome.exit_status, outcome.lost or "")
    if outcome.interrupted:
        raise typer.Exit(outcome.exit_status)
    from dpscope.analysis.report.training_report import show_training

    exit_after(outcome, lambda: show_training(out, target_accuracy, console), console)


def _mirrors(out: Path, settings: "TrainConfig", wandb: bool, online: bool) -> "list[TrainingMirror]":
    """Where epochs are shown while they are trained: TensorBoard, and wandb if asked for."""
    from dpscope.profiling.mirrors.tensorboard_mirror import training_events
    from dpscope.profiling.mirrors.wandb_mirror import wandb_mirror

    shown = [training_events(out, settings)]
    return [*shown, wandb_mirror(out, settings, online)] if wandb or online else shown


_NOT_SETTINGS = (
    *("config", "target_accuracy", "wandb", "wandb_online", "nodes", "node_rank", "rendezvous", "wait_for_nodes"),
    *("out", "resume_from", "fresh", "dry_run"),
)


def equal(
    strategy: options.Strategy = None,
    devices: Annotated[str | None, typer.Option(help="devices of dp and ddp")] = None,
    batch_size: Annotated[str | None, typer.Option(help="global, over all devices")] = None,
    steps: Annotated[int | None, typer.Option(help="steps under each strategy")] = None,
    model: options.Model = None,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    download: options.Download = None,
    samples: options.SamplesPerEpoch = None,
    workers: options.Workers = None,
    lr: options.Lr = None,
    momentum: options.Momentum = None,
    weight_decay: options.WeightDecay = None,
    seed: options.Seed = None,
    timeout: options.Timeout = None,
    device: options.Device = None,
    compile: options.Compile = None,
    dtype: Annotated[
        Literal["float64", "float32"], typer.Option(help="what is trained in; float64 tells mistakes from rounding")
    ] = "float64",
    freeze_batch_norm: Annotated[
        bool, typer.Option("--freeze-batch-norm", help="batch norm uses the first global batch's statistics throughout")
    ] = False,
    sync_batch_norm: Annotated[
        bool, typer.Option("--sync-batch-norm", help="ddp normalises by the global batch; GPUs only")
    ] = False,
    output_format: Annotated[Literal["table", "json"], typer.Option("--format", help="what to print")] = "table",
    nodes: options.Nodes = None,
    node_rank: options.NodeRank = None,
    rendezvous: options.Rendezvous = None,
    wait_for_nodes: options.WaitForNodes = None,
    out: Annotated[Path, typer.Option(help="the run folder; a comparison in it is replaced")] = options.DEFAULT_OUT,
) -> None:
    """Train from one seed on the same global batches under every strategy; say whether, where and why they differ."""
    given = {name: value for name, value in locals().items() if value}
    flags = {
        name: value for name, value in locals().items() if name not in (*_NOT_OF_EQUAL, "given") and value is not None
    }
    from rich.console import Console

    from dpscope.launch.equality.run import run_equality
    from dpscope.launch.equality.settings import equality_settings

    console = Console(markup=False, stderr=output_format == "json")
    place = this_node(nodes, node_rank, rendezvous)
    count = place.count if place is not None else 1
    settings = equality_settings(flags, dtype, freeze_batch_norm, sync_batch_norm, count)
    with on_all_nodes(place, out, given, settings.device, console) as starter:
        run_equality(settings, out, console, starter)
        starter.dismiss(0)
    from dpscope.analysis.output.equality import show_equality

    raise typer.Exit(0 if show_equality(out, output_format, console) else 1)


_NOT_OF_EQUAL = (
    *(
        "dtype",
        "freeze_batch_norm",
        "sync_batch_norm",
        "output_format",
        "out",
        "nodes",
        "node_rank",
        "rendezvous",
        "wait_for_nodes",
    ),
)
