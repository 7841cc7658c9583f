"""The commands about learning: `dpscope train`. With launch/cli.py the only modules that join launch and analysis."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dpscope.launch import cli_options as options


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
    timeout: options.TrainTimeout = None,
    device: options.Device = None,
    comm_hook: options.CommHook = None,
    bucket_mb: options.BucketMb = None,
    overlap: options.Overlap = None,
    gradient_as_bucket_view: options.GradientAsBucketView = None,
    static_graph: options.StaticGraph = None,
    accumulate: options.Accumulate = None,
    broadcast_buffers: options.BroadcastBuffers = None,
    config: options.Config = None,
    out: Annotated[Path, typer.Option(help="the run folder; what is trained there is kept")] = options.DEFAULT_OUT,
    fresh: Annotated[bool, typer.Option("--fresh", help="train everything again")] = False,
) -> None:
    """Train single, DP and DDP on the same batches, with the same settings; losses and accuracies per epoch."""
    flags = {name: value for name, value in locals().items() if name not in _NOT_SETTINGS and value is not None}
    from dpscope.launch.train_config import load_train_config
    from dpscope.launch.train_sweep import run_trainings

    outcome = run_trainings(load_train_config(config, flags), out, fresh, Console())
    raise typer.Exit(0 if outcome.ok else 1)


_NOT_SETTINGS = ("config", "out", "fresh")
