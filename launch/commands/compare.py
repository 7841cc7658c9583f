"""`dpscope compare`: what got faster or slower between runs."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpscope.launch.commands.command import Idle
from dpscope.profiling.store.errors import DpscopeError

IDLE = (Idle("by", lambda values: len(values["paths"]) < 3, "it orders three runs or more"),)


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="run folders of the same cells, or the traces of two jobs; of three runs or more the last is judged"
        ),
    ],
    fail_over: Annotated[
        str | None, typer.Option(help="exit with 1 if a step got slower beyond noise by more than this")
    ] = None,
    output_format: Annotated[
        Literal["table", "json", "csv", "markdown", "latex", "github", "junit"],
        typer.Option("--format", help="what to print; github: for a job's summary page"),
    ] = "table",
    force: Annotated[
        bool,
        typer.Option("--force", help="judge although settings, machines or models differ, else exit status 3 or 2"),
    ] = False,
    by: Annotated[
        Literal["time", "commit"] | None,
        typer.Option(
            help="order of three runs or more: by when they began (default), or by when their commits were made"
        ),
    ] = None,
) -> None:
    from rich.console import Console

    from dpscope.analysis.output.changes import print_comparison, print_history
    from dpscope.analysis.runs.compare import parse_share

    if len(paths) < 2:
        raise DpscopeError(f"{paths[0]}: one run has nothing to be compared with; name another, or several")
    share = None if fail_over is None else parse_share(fail_over)
    if len(paths) > 2:
        raise typer.Exit(print_history(paths, share, output_format, Console(markup=False), force, by or "time"))
    raise typer.Exit(print_comparison(paths[0], paths[1], share, output_format, Console(markup=False), force))


def defaults() -> dict[str, str]:
    """By option."""
    return {"--fail-over": "5%"}
