"""`dpscope run`: strategies measured and traced under torchrun, compared, reported."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Help, Idle, exit_after, open_console, option
from dpscope.launch.commands.help_text import by_device, config_defaults
from dpscope.launch.commands.several_nodes import on_all_nodes, this_node
from dpscope.profiling.records.config import RunConfig
from dpscope.profiling.records.settings import declarations
from dpscope.profiling.records.typed_text import parse_part
from dpscope.profiling.store.errors import DpscopeError, read_option
from dpscope.profiling.store.folders import is_run_folder

if TYPE_CHECKING:
    from dpscope.profiling.mirrors.wandb_mirror import CellMirror

DETECT_LIMIT_S = 1800.0
HELP = Help(
    examples=(
        "  # this machine's devices: single, DP and DDP",
        "--devices 1,2,4 --model resnet50 --batch-size 64 --out runs/mine",
        "--strategy ddp --bucket-mb 1,25 --overlap on,off --dry-run",
    ),
    usual="strategy devices batch_size model amp repeats out dry_run",
)

IDLE = (
    *options.NODES_IDLE,
    Idle(
        "verbose quiet open_page link target_efficiency wandb wandb_online",
        "dry_run",
        options.PLAN_ALONE,
    ),
    options.ONE_DETAIL,
    options.ONE_MIRROR,
    Idle("repeats", "detect", "--detect chooses the repeats of each cell"),
    Idle(
        "detect_limit",
        lambda values: not values["detect"],
        "it limits --detect, which is not given",
    ),
    Idle("detect_limit", "dry_run", "--dry-run plans the first repeats and takes no time"),
)


@dataclass(frozen=True, kw_only=True)
class RunRequest(options.NodeOptions, options.MirrorOptions):
    settings = declarations(RunConfig)

    detect: str | None = option(
        "instead of --repeats: as many as are needed to show a change of this size, such as 5% or 0.05",
        metavar="SHARE",
    )
    detect_limit: float | None = option(
        "seconds after which no repeat beyond the first three begins; default: 1800"
    )
    config: options.Config = None
    out: options.Out = options.DEFAULT_OUT
    fresh: bool = option("measure every cell again", "--fresh", default=False)
    dry_run: bool = option(
        "print the plan, its estimates and commands only", "--dry-run", default=False
    )
    verbose: options.Verbose = False
    quiet: options.Quiet = False
    open_page: options.OpenPage = False


def run(request: RunRequest) -> None:
    detail = options.detail(request.verbose, request.quiet)
    from dpscope.launch.measuring.run import describe_plan, run_sweep
    from dpscope.launch.planning.cells import check_idle_options
    from dpscope.launch.planning.run_config import load_config

    console, out = open_console(), request.out
    place = this_node(request, request.dry_run)
    settings = load_config(request.config, request.flags)
    nodes = place.count if place is not None else 1
    check_idle_options(settings, request.flags, nodes)
    if request.detect is not None:
        from dpscope.launch.commands.detect import check_limit, first_round, run_until_detected

        check_limit(request.detect_limit)
        change = read_option("--detect", request.detect, parse_part)
        settings = first_round(settings)
    if request.dry_run:
        describe_plan(settings, out, console, request.fresh, nodes, request.flags, request.config)
        return
    mirror: CellMirror | None = None
    if request.wandb or request.wandb_online:
        from dpscope.profiling.mirrors.wandb_mirror import cell_mirror

        mirror = cell_mirror(request.wandb_online)
    with on_all_nodes(place, request, settings.workload.device, console) as starter:
        if request.detect is None:
            outcome = run_sweep(settings, out, request.fresh, console, starter=starter)
        else:
            limit_s = DETECT_LIMIT_S if request.detect_limit is None else request.detect_limit
            outcome = run_until_detected(
                settings, out, request.fresh, console, change, limit_s, starter
            )
        starter.dismiss(outcome.exit_status, outcome.lost or "")
    from dpscope.analysis.output.run_screen import Targets, show_run

    def show() -> bool:
        if not is_run_folder(out):
            raise DpscopeError(
                f"{out}: its manifest.json was removed during the run: measure again"
            )
        sound = show_run(out, Targets(open_page=request.open_page), console, detail)
        if mirror is not None:
            from dpscope.analysis.output.run_json import cell_summaries
            from dpscope.analysis.output.run_screen import report_of

            mirror.write(out, cell_summaries(report_of(out, Targets())))
        return sound

    exit_after(outcome, show, console)


def defaults() -> dict[str, str]:
    """By option; `None` is chosen for the machine."""
    from dpscope.launch.planning.cells import (
        DEFAULT_BATCH_SIZES,
        DEFAULT_MODELS,
        DEFAULT_REPEATS,
        DEFAULT_STEPS,
    )
    from dpscope.launch.planning.run_config import load_config

    return config_defaults(load_config(None, {})) | {
        "--devices": options.DEFAULT_DEVICES,
        "--batch-size": by_device(DEFAULT_BATCH_SIZES),
        "--steps": by_device(DEFAULT_STEPS),
        "--model": by_device(DEFAULT_MODELS),
        "--repeats": by_device(DEFAULT_REPEATS),
        "--ddp-alone": by_device({"cuda": "on", "cpu": "off"}),
    }
