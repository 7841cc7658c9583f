"""`dpscope compare`: what got faster or slower between runs."""

from pathlib import Path
from typing import Literal

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Help, argument, open_console, option
from dpscope.profiling.records.typed_text import parse_share
from dpscope.profiling.store.errors import DpscopeError

HELP = Help(
    examples=("runs/before runs/after --fail-over 10%",),
    exit_statuses=(
        ("0", "no step is slower beyond noise by more than --fail-over"),
        ("1", "a step is slower beyond noise by more than --fail-over"),
        ("2", "a mistake in the command or its input; without --force, other models"),
        (
            "3",
            "cannot be judged: noise, missing cells or repeats; without --force, other settings or machines",
        ),
        ("130", "interrupted by Ctrl-C"),
    ),
)


def compare(
    before: Path = argument("a run folder, or the traces of a job"),
    after: Path = argument("a later run of the same cells, or the traces of a later job"),
    fail_over: str | None = option(
        "exit with 1 if a step got slower beyond noise by more than this, such as 10% or 0.1",
        metavar="SHARE",
    ),
    output_format: Literal["table", "json", "csv", "markdown", "latex", "github"] = option(
        "what to print; github: for a job's summary page", "--format", default="table"
    ),
    force: bool = option(
        "judge although settings, machines or models differ, else exit status 3 or 2",
        "--force",
        default=False,
    ),
) -> None:
    from dpscope.analysis.output.changes import print_comparison

    if before.resolve() == after.resolve():
        raise DpscopeError(
            f"{after} is named twice: a run does not differ from itself; name two runs"
        )
    share = options.read("--fail-over", fail_over, parse_share)
    raise typer.Exit(print_comparison(before, after, share, output_format, open_console(), force))


def defaults() -> dict[str, str]:
    return {"--fail-over": "5%"}
