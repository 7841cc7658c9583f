"""`dpscope compare`: what got faster or slower between runs."""

from pathlib import Path
from typing import Literal

import typer

from dpscope.launch.commands.command import Help, argument, open_console, option
from dpscope.profiling.store.errors import DpscopeError

HELP = Help(
    examples=("runs/before runs/after --fail-over 10%",),
    exit_statuses=(
        ("0", "no step is slower beyond noise by more than --fail-over"),
        ("1", "a step is slower beyond noise by more than --fail-over"),
        ("2", "a mistake in the command or its input; without --force, other models"),
        (
            "3",
            "cannot be judged: noise, a missing cell; without --force, other settings or machines",
        ),
        ("130", "interrupted by Ctrl-C"),
    ),
)


def compare(
    before: Path = argument("a run folder, or the traces of a job"),
    after: Path = argument("a later run of the same cells, or the traces of a later job"),
    fail_over: str | None = option(
        "exit with 1 if a step got slower beyond noise by more than this", metavar="PERCENT"
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
    share = None if fail_over is None else parse_share(fail_over)
    raise typer.Exit(print_comparison(before, after, share, output_format, open_console(), force))


def parse_share(text: str) -> float:
    """``5%`` or ``0.05`` as 0.05; more than 100% takes the sign, since ``5`` is meant as 5%; raises
    DpscopeError.
    """
    percent = text.endswith("%")
    try:
        value = float(text.removesuffix("%")) / (100 if percent else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise DpscopeError(f"--fail-over {text}: not a share; write it as 5% or 0.05")
    if value > 1 and not percent:
        raise DpscopeError(
            f"--fail-over {text}: without a unit that is 100% or more; write {text}%, or {value:.0%}"
        )
    return value


def defaults() -> dict[str, str]:
    return {"--fail-over": "5%"}
