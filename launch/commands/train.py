"""`dpscope train`: strategies trained on the same batches."""

from dataclasses import dataclass

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Help, Idle, exit_after, open_console, option
from dpscope.launch.commands.help_text import config_defaults
from dpscope.launch.commands.several_nodes import on_all_nodes, this_node
from dpscope.profiling.records.settings import declarations
from dpscope.profiling.records.training import TrainConfig

HELP = Help(
    examples=(
        "--devices 2 --seeds 0,1,2  # real digits, every strategy on the same batches",
        "--data cifar10 --download --epochs 30 --out runs/cifar",
        "--strategy single,ddp --target-accuracy 90%",
    ),
    usual="strategy devices seeds epochs model data batch_size out dry_run",
)

IDLE = (
    *options.NODES_IDLE,
    Idle("target_accuracy wandb wandb_online", "dry_run", options.PLAN_ALONE),
    options.ONE_MIRROR,
)
_NO_OPTIONS = ("seed", "ddp_alone")  # there are --seeds; DDP on one device trains as single does
_SETTINGS = {
    name: setting for name, setting in declarations(TrainConfig).items() if name not in _NO_OPTIONS
}


@dataclass(frozen=True, kw_only=True)
class TrainRequest(options.NodeOptions, options.MirrorOptions):
    settings = _SETTINGS

    config: options.Config = None
    target_accuracy: options.TargetAccuracy = None
    out: options.Out = options.DEFAULT_OUT
    fresh: bool = option("train everything again", "--fresh", default=False)
    dry_run: bool = option(
        "print the plan, its estimates and commands only", "--dry-run", default=False
    )


def train(request: TrainRequest) -> None:
    from dpscope.launch.learning.train_plan import describe_trainings, load_train_config
    from dpscope.launch.learning.train_run import run_trainings

    target_accuracy = options.read_accuracy(request.target_accuracy)
    console, out = open_console(), request.out
    place = this_node(request, request.dry_run)
    settings = load_train_config(request.config, request.flags)
    if request.dry_run:
        nodes = place.count if place is not None else 1
        describe_trainings(
            settings, out, console, request.fresh, nodes, request.flags, request.config
        )
        return
    from dpscope.profiling.mirrors.mirror import TrainingMirror
    from dpscope.profiling.mirrors.tensorboard_mirror import training_events
    from dpscope.profiling.mirrors.wandb_mirror import wandb_mirror

    with on_all_nodes(place, request, settings.workload.device, console) as starter:
        mirrors: list[TrainingMirror] = [training_events(out, settings)]
        if request.wandb or request.wandb_online:
            mirrors.append(wandb_mirror(out, settings, request.wandb_online))
        outcome = run_trainings(settings, out, request.fresh, console, mirrors, starter)
        starter.dismiss(outcome.exit_status, outcome.lost or "")
    if outcome.interrupted:
        raise typer.Exit(outcome.exit_status)
    from dpscope.analysis.report.training_report import show_training

    exit_after(outcome, lambda: show_training(out, target_accuracy, console), console)


def defaults() -> dict[str, str]:
    """By option; `None` is chosen for the machine."""
    from dpscope.launch.learning.train_plan import TRAINING_BATCH_SIZE, load_train_config

    chosen, others = (
        config_defaults(load_train_config(None, {"data": data})) for data in ("digits", "cifar10")
    )
    return chosen | {
        "--devices": options.DEFAULT_DEVICES,
        "--batch-size": str(TRAINING_BATCH_SIZE),
        "--workers": f"{chosen['--workers']}; {others['--workers']} for other data than digits",
    }
