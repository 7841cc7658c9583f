"""`dpscope compare`: what got faster or slower between runs."""

from collections import Counter
from pathlib import Path
from typing import Literal

import typer

from dpscope.launch.commands.command import Idle, argument, open_console, option
from dpscope.profiling.store.errors import DpscopeError

IDLE = (Idle("by", lambda values: len(values["paths"]) < 3, "it orders three runs or more"),)


def compare(
    paths: list[Path] = argument(
        "run folders of the same cells, or the traces of two jobs; of three runs or more the last is judged"
    ),
    fail_over: str | None = option("exit with 1 if a step got slower beyond noise by more than this"),
    output_format: Literal["table", "json", "csv", "markdown", "latex", "github", "junit"] = option(
        "what to print; github: for a job's summary page", "--format", default="table"
    ),
    force: bool = option(
        "judge although settings, machines or models differ, else exit status 3 or 2", "--force", default=False
    ),
    by: Literal["time", "commit"] | None = option(
        "order of three runs or more: by when they began (default), or by when their commits were made"
    ),
) -> None:
    from dpscope.analysis.output.changes import print_comparison
    from dpscope.analysis.runs.compare import parse_share

    if len(paths) < 2:
        raise DpscopeError(f"{paths[0]}: one run has nothing to be compared with; name another, or several")
    if twice := [path for path, count in Counter(path.resolve() for path in paths).items() if count > 1]:
        raise DpscopeError(f"{twice[0]} is named twice: a run does not differ from itself; name each run once")
    share = None if fail_over is None else parse_share(fail_over)
    raise typer.Exit(print_comparison(paths, share, output_format, open_console(), force, by or "time"))


def defaults() -> dict[str, str]:
    return {"--fail-over": "5%"}
