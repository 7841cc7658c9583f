"""`dpscope merge`: one trace of all ranks."""

from pathlib import Path
from typing import Annotated

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Idle

IDLE = (
    Idle(
        "cell repeat",
        lambda values: not any(map(options.holds_run, values["paths"])),
        "it chooses a job of a run folder, and none was named",
    ),
)


def merge(
    paths: Annotated[list[Path], typer.Argument(help="a run folder, or the traces of one job's ranks")],
    output: Annotated[Path, typer.Option("--output", "-o", help="the merged trace, *.json or *.json.gz")],
    cell: Annotated[str | None, typer.Option(help="which cell of a run, such as ddp-d2-b32")] = None,
    repeat: Annotated[int | None, typer.Option(help="which repeat of it; default: the first")] = None,
    max_bytes: options.MaxBytes = None,
    max_events: options.MaxEvents = None,
) -> None:
    limits = options.read_limits(max_bytes, max_events)
    from rich.console import Console

    from dpscope.analysis.output.merge import print_merge

    raise typer.Exit(print_merge(paths, output, cell, repeat, limits, Console(markup=False)))
