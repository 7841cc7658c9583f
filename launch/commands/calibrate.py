"""`dpscope calibrate`: collectives timed by size, and what they cost elsewhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import (
    NOTHING_PREDICTED,
    PREDICTED_NOTHING,
    Help,
    Idle,
    argument,
    open_console,
    option,
)
from dpscope.launch.commands.help_text import default_texts
from dpscope.launch.commands.several_nodes import on_all_nodes, this_node
from dpscope.launch.measuring.calibration_settings import DEFAULTS, SETTINGS
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from rich.console import Console

    from dpscope.profiling.records.calibration import Calibration

_MEASURING = " ".join(
    (
        *(setting.option for setting in SETTINGS.values()),
        "nodes node_rank rendezvous wait_for_nodes",
    )
)
HELP = Help(
    examples=(
        "--devices 2 --max-bytes 16MiB --out runs/mine",
        "--predict 4,8 runs/mine/calibration.json  # counts that were not measured",
        "--from-nccl-tests all_reduce.log",
    ),
    exit_statuses=(*Help.exit_statuses, PREDICTED_NOTHING),
)

IDLE = (
    options.ONE_NODE,
    Idle(_MEASURING, "from_nccl_tests", "--from-nccl-tests reads logs and measures nothing"),
    Idle(f"{_MEASURING} link", "predict", "--predict reads what was measured and measures nothing"),
    Idle(
        "out",
        lambda values: values["predict"] and values["logs"],
        "--predict writes nothing, and the calibration is named",
    ),
    Idle(
        "output_format",
        lambda values: not values["predict"],
        "only predictions (--predict) have a format",
    ),
    Idle(
        "in_place",
        lambda values: not values["from_nccl_tests"],
        "only logs read with --from-nccl-tests have it",
    ),
)


@dataclass(frozen=True, kw_only=True)
class CalibrateRequest(options.NodeOptions):
    settings = SETTINGS

    link: options.Link = None
    from_nccl_tests: bool = option(
        "read nccl-tests' output, the LOGs, instead of measuring",
        "--from-nccl-tests",
        default=False,
    )
    in_place: bool = option("read the in-place columns", "--in-place", default=False)
    predict: str | None = option(
        "measure nothing: predict collectives on these device counts or layouts, such as 64,4x8",
        metavar="COUNTS",
    )
    output_format: Literal["table", "json"] = option(
        "with --predict: what to print", "--format", default="table"
    )
    out: Path = option("a run folder, or a .json file", default=options.DEFAULT_OUT)
    logs: list[Path] | None = argument(
        "what --from-nccl-tests reads; with --predict also a calibration",
        default=None,
        metavar="[LOG ...]",
    )


def calibrate(request: CalibrateRequest) -> None:
    stated = options.read_link(request.link)
    from dpscope.analysis.costs.calibration_files import (
        calibration_from_logs,
        calibration_path,
        wrong_results,
    )
    from dpscope.analysis.report.calibration import (
        calibration_answers,
        calibration_tables,
        save_calibration,
    )
    from dpscope.analysis.report.nccl_tables import calibration_chapter
    from dpscope.analysis.text.terminal import print_findings, print_sentences, print_tables
    from dpscope.launch.jobs.out_folder import check_calibration_place
    from dpscope.launch.measuring.calibration_run import run_calibration
    from dpscope.launch.measuring.calibration_settings import calibration_settings

    if request.predict is not None:
        return _predict_collectives(request, request.predict)
    logs, out = request.logs or [], request.out
    if logs and not request.from_nccl_tests:
        raise DpscopeError(
            f"{logs[0]}: a measurement takes no file; add --from-nccl-tests to read logs"
        )
    check_calibration_place(out, calibration_path(out))
    console = open_console()
    if request.from_nccl_tests:
        measured = calibration_from_logs(logs, request.in_place, stated)
    else:
        place = this_node(request)
        device = str(request.flags.get("device", "auto"))
        chosen = {
            name: request.flags[setting.option]
            for name, setting in SETTINGS.items()
            if setting.option in request.flags
        }
        settings = calibration_settings(place.count if place is not None else 1, **chosen)
        folder = calibration_path(out).parent
        with on_all_nodes(place, request, device, console, folder) as starter:
            measured = run_calibration(settings, console, stated, starter, folder)
            starter.dismiss(0)
    fitted, path = save_calibration(measured, out)
    untrusted = wrong_results(fitted)
    print_sentences(console, (f"WRONG RESULTS: {wrong.message}." for wrong in untrusted))
    print_sentences(console, calibration_answers(fitted))
    print_tables(calibration_tables(fitted), "table", console)
    _print_node_rates(console, fitted)
    print_findings(console, (*fitted.findings, *calibration_chapter(fitted).findings))
    console.print(
        f"\nCalibration: {path}; figure: {path.with_suffix('.png')}",
        highlight=False,
        soft_wrap=True,
    )
    if path != out:
        console.print(_next_step(request), highlight=False, soft_wrap=True)
    if untrusted:
        raise typer.Exit(1)


def _next_step(request: CalibrateRequest) -> str:
    """What to do with a calibration that is in a run folder, or begins one."""
    from dpscope.profiling.store.folders import is_run_folder

    out = request.out
    if is_run_folder(out):
        return f"Next: dpscope analyze {out}"
    where = ", on the machine of the logs" if request.from_nccl_tests else ""
    return f"Next{where}: dpscope run --out {out}, whose report then predicts"


def _print_node_rates(console: "Console", calibration: "Calibration") -> None:
    from dpscope.analysis.costs.node_rates import rate_between, rate_within

    between = rate_between(calibration)
    if between is not None:
        within = rate_within(calibration) or "not timed"
        console.print(f"Rate between nodes: {between}; within a node: {within}", highlight=False)


def _predict_collectives(request: CalibrateRequest, counts: str) -> None:
    from dpscope.analysis.costs.calibration_files import calibration_from_logs, costs_at
    from dpscope.analysis.costs.requested_places import requested_places
    from dpscope.analysis.output.collective_forecast import print_forecasts

    requested, paths = requested_places(counts, least=2), request.logs or [request.out]
    if request.from_nccl_tests:
        calibration = calibration_from_logs(paths, request.in_place)
    elif len(paths) == 1:
        calibration = costs_at(paths[0], "--predict")
    else:
        raise DpscopeError(
            f"{paths[1]}: --predict takes one calibration; add --from-nccl-tests to read logs"
        )
    if not print_forecasts(calibration, requested, request.output_format, open_console()):
        raise typer.Exit(NOTHING_PREDICTED)


def defaults() -> dict[str, str]:
    chosen = default_texts({setting.option: DEFAULTS[name] for name, setting in SETTINGS.items()})
    return chosen | {"--devices": "2, 4, ... and all GPUs; 2 on the CPU", "--collectives": "all"}
