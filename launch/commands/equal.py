"""`dpscope equal`: a few steps under each strategy, every tensor compared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Help, Idle, open_console, option
from dpscope.launch.commands.help_text import by_device, config_defaults
from dpscope.launch.commands.several_nodes import on_all_nodes, this_node
from dpscope.profiling.records.config import Optimizer, RunConfig
from dpscope.profiling.records.settings import declarations

HELP = Help(
    examples=(
        "  # single, DP and DDP on 2 devices, 20 steps",
        "--strategy dp,ddp --devices 4 --batch-size 64 --model resnet50",
    ),
    exit_statuses=(
        ("0", "all agree"),
        ("1", "something differs, or cannot be judged"),
        ("2", "a mistake in the command or its input"),
    ),
)

IDLE = (
    *options.NODES_IDLE,
    Idle("output_format", "dry_run", "--dry-run prints the plan and compares nothing"),
)
_NAMES = (
    *(
        "strategies",
        "devices",
        "batch_sizes",
        "compile",
        "model",
        "data",
        "data_dir",
        "download",
        "samples",
        "workers",
    ),
    *(*Optimizer.__struct_fields__, "seed", "steps", "timeout_s", "device"),
)
_SETTINGS = {name: setting for name, setting in declarations(RunConfig).items() if name in _NAMES}


@dataclass(frozen=True, kw_only=True)
class EqualRequest(options.NodeOptions):
    settings = _SETTINGS

    dtype: Literal["float64", "float32"] = option(
        "precision of the training; float64 distinguishes mistakes from rounding", default="float64"
    )
    output_format: Literal["table", "json"] = option("what to print", "--format", default="table")
    out: Path = option(
        "the run folder; a comparison in it is replaced", default=options.DEFAULT_OUT
    )
    dry_run: bool = option("print the plan only", "--dry-run", default=False)


def equal(request: EqualRequest) -> None:
    from dpscope.launch.learning.equal_run import (
        describe_comparison,
        equality_settings,
        run_equality,
    )

    console = open_console(stderr=request.output_format == "json")
    place = this_node(request, request.dry_run)
    settings = equality_settings(
        request.flags, request.dtype, place.count if place is not None else 1
    )
    if request.dry_run:
        describe_comparison(settings, request.out, console)
        return
    with on_all_nodes(place, request, settings.device, console) as starter:
        run_equality(settings, request.out, console, starter)
        starter.dismiss(0)
    from dpscope.analysis.output.equality import show_equality

    raise typer.Exit(0 if show_equality(request.out, request.output_format, console) else 1)


def defaults() -> dict[str, str]:
    """By option; `None` is chosen for the machine, and the samples by the batch and the steps."""
    from dpscope.launch.learning.equal_run import DEFAULTS, EQUALITY_BATCH_SIZES
    from dpscope.launch.planning.cells import DEFAULT_MODELS
    from dpscope.launch.planning.run_config import load_config

    chosen = config_defaults(load_config(None, DEFAULTS))
    chosen |= {
        "--batch-size": by_device(EQUALITY_BATCH_SIZES),
        "--model": by_device(DEFAULT_MODELS),
    }
    return {option: default for option, default in chosen.items() if option != "--samples"}
