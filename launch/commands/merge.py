"""`dpscope merge`: one trace of all ranks."""

from dataclasses import MISSING
from pathlib import Path

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Help, Idle, argument, open_console, option

HELP = Help(
    examples=("runs/mine -o merged.json.gz  # for ui.perfetto.dev", "traces/ -o merged.json.gz")
)

IDLE = (
    Idle(
        "cell repeat",
        lambda values: not any(map(options.holds_run, values["paths"])),
        "it chooses a job of a run folder, and none was named",
    ),
)


def merge(
    paths: list[Path] = argument(
        "a run folder, or the traces of one job's ranks", metavar="PATH ..."
    ),
    output: Path = option(
        "the merged trace, *.json or *.json.gz", "--output", "-o", default=MISSING
    ),
    cell: str | None = option("which cell of a run, such as ddp-d2-b32"),
    repeat: int | None = option("which repeat of it; default: the first"),
    max_bytes: options.MaxBytes = None,
    max_events: options.MaxEvents = None,
) -> None:
    limits = options.read_limits(max_bytes, max_events)
    from dpscope.analysis.output.merge import print_merge

    raise typer.Exit(print_merge(paths, output, cell, repeat, limits, open_console()))
