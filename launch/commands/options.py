"""Options that several commands of `dpscope` share, the situations in which they have no effect,
and how they are read.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from dpscope.launch.commands.command import Idle, Request, option, setting_option
from dpscope.launch.commands.help_text import READING
from dpscope.profiling.records.config import Reporting
from dpscope.profiling.records.settings import declarations
from dpscope.profiling.records.typed_text import parse_part, parse_size
from dpscope.profiling.store.errors import DpscopeError, read_option

if TYPE_CHECKING:
    from dpscope.analysis.traces.reading.chunks import ReadLimits
    from dpscope.profiling.records.links import LinkRate

_Stated = TypeVar("_Stated")

DEFAULT_OUT = Path("runs/default")
DEFAULT_DEVICES = "all GPUs in powers of two; 1,2 on the CPU"
Out = Annotated[Path, typer.Option(help="the run folder; what is done there already is kept")]
Config = Annotated[Path | None, typer.Option(help="a TOML file with the same settings; flags win")]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        help="print every finding and the tables of cells, steps, collectives and ranks; the page has all",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="print the report's path alone")]
OpenPage = Annotated[bool, typer.Option("--open", help="open the report's page in the browser")]
NcclLogs = Annotated[
    list[Path] | None,
    typer.Option(
        "--nccl-log",
        rich_help_panel=READING,
        help="NCCL's own log (NCCL_DEBUG=INFO) of the job: a file or a folder; may be repeated",
    ),
]
TargetAccuracy = Annotated[
    str | None,
    typer.Option(
        help="an accuracy, such as 95% or 0.95: the report shows when trainings reached it"
    ),
]
MaxBytes = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        rich_help_panel=READING,
        help="read no more of a trace than this, uncompressed, such as 4GB; default: 16 GiB",
    ),
]
MaxEvents = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=READING,
        help="refuse a trace with more events than this; default: 10 million",
    ),
]
StepsBy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="the name, without its number, of the ranges that are steps: record_function's, or "
        "NVTX's of an nsys export",
    ),
]
Link = Annotated[str | None, setting_option(declarations(Reporting)["link"])]
TargetEfficiency = Annotated[
    str | None, setting_option(declarations(Reporting)["target_efficiency"])
]


@dataclass(frozen=True, kw_only=True)
class NodeOptions(Request):
    """Where the nodes of a command meet."""

    out: Path
    nodes: str | None = option(
        "nodes that this command is started on, once on each: auto (from srun, mpirun, ...) or a number"
    )
    node_rank: int | None = option("this node's number, from 0, if no launcher gives it")
    rendezvous: str | None = option(
        "where the nodes meet, on node 0, if no launcher gives it", metavar="HOST:PORT"
    )
    wait_for_nodes: float | None = option(
        "seconds that nodes wait for each other; default: 300", metavar="SECONDS", min=1
    )


@dataclass(frozen=True, kw_only=True)
class MirrorOptions(Request):
    """Where scalars are mirrored."""

    wandb: bool = option(
        "mirror the scalars to wandb, offline unless WANDB_MODE is set", "--wandb", default=False
    )
    wandb_online: bool = option("mirror them to wandb's server", "--wandb-online", default=False)


PLAN_ALONE = "--dry-run prints the plan and makes no report"
ONE_DETAIL = Idle("verbose", "quiet", "--quiet prints the report's path alone")
ONE_MIRROR = Idle("wandb", "wandb_online", "--wandb-online mirrors already")
_MEETING = "node_rank rendezvous wait_for_nodes"
ONE_NODE = Idle(
    _MEETING, lambda values: values["nodes"] in (None, "1"), "without --nodes there is one node"
)
NODES_IDLE = (
    ONE_NODE,
    Idle(_MEETING, "dry_run", "--dry-run prints the plan and starts nothing on any node"),
)


def holds_run(path: Path) -> bool:
    from dpscope.profiling.store.folders import is_run_folder

    return is_run_folder(path)


def holds_trainings(path: Path) -> bool:
    """Whether a path is a folder with trained epochs."""
    from dpscope.profiling.store.training_folders import holds_epochs

    return holds_epochs(path)


def any_run(values: Mapping[str, Any]) -> bool:
    return any(holds_run(path) or holds_trainings(path) for path in values["paths"])


def any_partial(values: Mapping[str, Any]) -> bool:
    """Whether the paths are read as partials."""
    from dpscope.analysis.traces.ranks.readers import PARTIALS, find_files

    try:
        return find_files(values["paths"]).reader is PARTIALS
    except DpscopeError:  # the command reports it
        return False


def any_record(values: Mapping[str, Any]) -> bool:
    """Whether the paths are read as records of collectives."""
    from dpscope.analysis.traces.ranks.readers import RECORDS, find_files

    try:
        return find_files(values["paths"]).reader is RECORDS
    except DpscopeError:  # the command reports it
        return False


def trainings_alone(values: Mapping[str, Any]) -> bool:
    """Whether the first path holds trainings and no run."""
    path = values["paths"][0]
    return holds_trainings(path) and not holds_run(path)


def read_link(text: str | None) -> "LinkRate | None":
    """The link that --link states; raises DpscopeError for a text that states none."""
    from dpscope.profiling.machine.link_specifications import parse_link

    return read("--link", text, parse_link)


def read(option: str, text: str | None, parse: Callable[[str], _Stated]) -> _Stated | None:
    """An option's text, read; raises DpscopeError where `parse` raises ValueError."""
    return None if text is None else read_option(option, text, parse)


def read_accuracy(text: str | None) -> float | None:
    """The percentage that --target-accuracy states; raises DpscopeError for a text that states
    none.
    """
    part = read("--target-accuracy", text, parse_part)
    return None if part is None else 100 * part


def read_size(option: str, text: str | None, unit_bytes: int = 1) -> float | None:
    """The bytes of a size such as ``4096``, ``4 MB`` or ``4MiB``; raises DpscopeError for a text
    that states none.
    """
    return read(option, text, lambda stated: parse_size(stated, unit_bytes))


def read_limits(
    max_bytes: str | None, max_events: int | None, steps_by: str | None = None
) -> "ReadLimits":
    """The limits of one trace file; raises DpscopeError for one that leaves nothing to read."""
    from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS, ReadLimits

    size = read_size("--max-bytes", max_bytes)
    if max_events is not None and max_events < 1:
        raise DpscopeError(f"--max-events {max_events}: must be 1 or more")
    return ReadLimits(
        max(1, round(size)) if size else DEFAULT_LIMITS.max_bytes,
        max_events or DEFAULT_LIMITS.max_events,
        steps_by,
    )


def detail(verbose: bool, quiet: bool) -> Literal["summary", "everything", "path"]:
    """How much of a run is printed."""
    return "everything" if verbose else "path" if quiet else "summary"


def require_paths(option_name: str, paths: Iterable[Path], what: str) -> None:
    """Raise DpscopeError naming the option and `what` it takes where a path does not exist."""
    for path in paths:
        if not path.exists():
            raise DpscopeError(f"{option_name} {path} does not exist; name {what}")
