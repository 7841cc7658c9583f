"""Options that would do nothing are refused: who gives one believes that it did. Imports neither torch nor analysis."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpscope.profiling.store.errors import DpscopeError

OptionValues = Mapping[str, Any]


@dataclass(frozen=True)
class Idle:
    """Parameters of a command that have no effect in a situation, and why."""

    parameters: tuple[str, ...]
    when: Callable[[OptionValues], bool]
    why: str


def _holds_run(path: Path) -> bool:
    from dpscope.profiling.store.folders import is_run_folder

    return is_run_folder(path)


def _of_table(values: OptionValues) -> bool:
    return bool(values["paths"][0].suffix.lower() in (".csv", ".tsv"))


def _of_run(values: OptionValues) -> bool:
    return _holds_run(values["paths"][0])


def _holds_trainings(path: Path) -> bool:
    from dpscope.profiling.store.training_folders import holds_epochs

    return holds_epochs(path)


def _any_run(values: OptionValues) -> bool:
    return any(_holds_run(path) or _holds_trainings(path) for path in values["paths"])


def _any_partial(values: OptionValues) -> bool:
    return any(
        path.suffix == ".dpscope" or (path.is_dir() and any(path.rglob("*.dpscope"))) for path in values["paths"]
    )


def _trainings_alone(values: OptionValues) -> bool:
    path = values["paths"][0]
    return _holds_trainings(path) and not _holds_run(path)


def _no_report(values: OptionValues) -> bool:
    """Whether `analyze` prints something else than a run's report, of which the terminal shows more or less."""
    return not _any_run(values) or values["classic"] or values["output_format"] != "table"


_ONE_DETAIL = Idle(
    ("verbose",), lambda values: values["quiet"], "--quiet prints the report's path alone; give one of them"
)
_PLAN_ALONE = "--dry-run prints the plan and makes no report"
_ONE_NODE = Idle(
    ("node_rank", "rendezvous", "wait_for_nodes"),
    lambda values: values["nodes"] in (None, "1"),
    "without --nodes there is one node",
)
_NO_MEETING = Idle(
    ("node_rank", "rendezvous", "wait_for_nodes"),
    lambda values: values["dry_run"],
    "--dry-run prints the plan and starts nothing on any node",
)

IDLE: dict[str, tuple[Idle, ...]] = {
    "run": (
        _ONE_NODE,
        _NO_MEETING,
        Idle(
            ("verbose", "quiet", "open_page", "link", "target_efficiency", "wandb", "wandb_online"),
            lambda values: values["dry_run"],
            _PLAN_ALONE,
        ),
        _ONE_DETAIL,
        Idle(("wandb",), lambda values: values["wandb_online"], "--wandb-online mirrors already; give one of them"),
        Idle(("repeats",), lambda values: values["detect"] is not None, "--detect chooses the repeats of each cell"),
        Idle(("detect_limit",), lambda values: values["detect"] is None, "it limits --detect, which is not given"),
        Idle(
            ("detect_limit",), lambda values: values["dry_run"], "--dry-run plans the first repeats and takes no time"
        ),
    ),
    "attach": (_ONE_DETAIL,),
    "compare": (Idle(("by",), lambda values: len(values["paths"]) < 3, "it orders three runs or more"),),
    "analyze": (
        Idle(("classic",), lambda values: not _any_run(values), "trace files alone hold no epochs; give a run folder"),
        Idle(
            ("verbose", "quiet"),
            _no_report,
            "only a run's report, without --format and --tables, is told in more or less",
        ),
        Idle(
            ("figures", "open_page"),
            lambda values: _no_report(values) and values["report"] is None,
            "only a run's report, without --format and --tables, has a page and figures, and that of traces with --report",
        ),
        _ONE_DETAIL,
        Idle(
            ("target_efficiency",),
            lambda values: not _any_run(values),
            "efficiency needs a step on one device to compare with, which traces of one job do not hold; give a run folder",
        ),
        Idle(("target_accuracy",), lambda values: not _any_run(values), "traces hold no training; give a run folder"),
        Idle(
            ("link", "calibration"),
            lambda values: not _any_run(values) and values["output_format"] == "csv",
            "the CSV of traces has the steps alone; use --format table or json",
        ),
        Idle(
            ("nccl_log",),
            lambda values: values["classic"] or values["output_format"] == "csv",
            "what NCCL chose is in the report and its tables and in JSON; omit --tables and --format csv",
        ),
        Idle(
            ("report",),
            lambda values: _any_run(values) and (values["classic"] or values["output_format"] != "table"),
            "a run's tables are printed and nothing is written; omit --format and --tables",
        ),
        Idle(("max_bytes", "max_events"), _any_run, "a run's traces are read whole; give trace files"),
        Idle(
            ("topology", "hide_hosts"),
            _any_run,
            "it applies to traces and partials; dpscope bundle hides a run's hosts",
        ),
        Idle(
            ("topology", "hide_hosts"),
            lambda values: values["output_format"] == "csv",
            "the CSV of traces names no host",
        ),
        Idle(
            ("max_bytes", "max_events"),
            _any_partial,
            "partials are not read again as traces; give it to dpscope reduce",
        ),
        Idle(
            ("link", "calibration", "nccl_log", "report", "target_efficiency"),
            _trainings_alone,
            "trainings alone hold no measured steps",
        ),
        Idle(
            ("target_accuracy",),
            lambda values: _any_run(values) and not any(map(_holds_trainings, values["paths"])),
            "nothing was trained in this folder",
        ),
        Idle(
            ("target_accuracy",),
            lambda values: values["output_format"] == "csv" or values["classic"],
            "the times to an accuracy are in no CSV and in none of --tables; use --format table, json, markdown or latex",
        ),
        Idle(
            ("target_efficiency",),
            lambda values: values["output_format"] in ("csv", "markdown", "latex") or values["classic"],
            "it is judged in the findings, which these tables do not hold; use --format table or json",
        ),
        Idle(
            ("classic",), lambda values: values["output_format"] == "json", "JSON holds every table; give one of them"
        ),
    ),
    "tensorboard": (
        Idle(("link",), _trainings_alone, "trainings alone hold no measured steps"),
        Idle(("out",), _any_run, "a run's TensorBoard folder lies in the run's own"),
    ),
    "calibrate": (
        _ONE_NODE,
        Idle(
            (
                *("devices", "collectives", "dtype", "min_bytes", "max_bytes"),
                *("iterations", "warmup", "timeout", "device", "nodes", "node_rank", "rendezvous", "wait_for_nodes"),
            ),
            lambda values: values["from_nccl_tests"],
            "--from-nccl-tests reads logs and measures nothing",
        ),
        Idle(
            (
                *(
                    "devices",
                    "collectives",
                    "dtype",
                    "min_bytes",
                    "max_bytes",
                    "iterations",
                    "warmup",
                    "timeout",
                    "device",
                ),
                *("nodes", "node_rank", "rendezvous", "wait_for_nodes", "link"),
            ),
            lambda values: values["predict"] is not None,
            "--predict reads what was measured and measures nothing",
        ),
        Idle(
            ("out",),
            lambda values: values["predict"] is not None and bool(values["logs"]),
            "--predict writes nothing, and the calibration is named",
        ),
        Idle(
            ("output_format",), lambda values: values["predict"] is None, "only predictions (--predict) have a format"
        ),
        Idle(
            ("in_place",), lambda values: not values["from_nccl_tests"], "only logs read with --from-nccl-tests have it"
        ),
    ),
    "merge": (
        Idle(
            ("cell", "repeat"),
            lambda values: not any(map(_holds_run, values["paths"])),
            "it chooses a job of a run folder, and none is given",
        ),
    ),
    "reduce": (
        Idle(
            ("share", "jobs", "max_bytes", "max_events"),
            _any_partial,
            "partials are joined by one task, which reads no trace",
        ),
    ),
    "bundle": (Idle(("output",), lambda values: values["list_only"], "--list writes nothing"),),
    "whatif": (
        Idle(
            ("per_node", "batch_size"),
            lambda values: values["measured"] is not None,
            "the rows of --measured say it",
        ),
        Idle(
            (
                *(
                    "cell",
                    "link",
                    "inter",
                    "intra",
                    "bucket_mb",
                    "comm_hook",
                    "accumulate",
                    "overlap",
                    "strategy",
                    "faster",
                    "jitter",
                ),
                *(
                    "solve",
                    "need",
                    "trace",
                    "figure",
                    "base_devices",
                    "base_batch_size",
                    "base_bucket_mb",
                ),
            ),
            _of_table,
            "a table of step times does not tell what it changes; give a run or a trace",
        ),
        Idle(
            ("measured",),
            lambda values: not _of_table(values),
            "it is for a table, and a run or a trace is given",
        ),
        Idle(
            ("cell",),
            lambda values: not _holds_run(values["paths"][0]),
            "it chooses a cell of a run folder, and none is given",
        ),
        Idle(
            ("base_devices", "base_batch_size", "base_bucket_mb", "gradient_bytes"),
            _of_run,
            "a run tells it",
        ),
        Idle(
            ("need",),
            lambda values: values["solve"] in (None, "bucket-mb", "strategy"),
            "it is the target of --solve inter, intra, faster or devices",
        ),
    ),
    "equal": (_ONE_NODE,),
    "train": (
        _ONE_NODE,
        _NO_MEETING,
        Idle(("target_accuracy", "wandb", "wandb_online"), lambda values: values["dry_run"], _PLAN_ALONE),
        Idle(("wandb",), lambda values: values["wandb_online"], "--wandb-online mirrors already; give one of them"),
    ),
}


def check_options(command: str, stated: Collection[str], values: OptionValues, flags: Mapping[str, str]) -> None:
    """Raise DpscopeError for a parameter that was `stated` and does nothing; `flags` are the parameters' names as typed."""
    for rule in IDLE.get(command, ()):
        if (idle := [name for name in rule.parameters if name in stated]) and rule.when(values):
            raise DpscopeError(f"{flags[idle[0]]} does nothing here: {rule.why}; omit it")
