"""`dpscope estimate`: published or hand-timed epoch times, judged."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer


def estimate(
    table: Annotated[
        Path, typer.Argument(help="CSV of epoch times: strategy, batch_size, devices, epoch_seconds, ...")
    ],
    claims: Annotated[
        Path | None,
        typer.Option(help="CSV of values derived from them, to audit: quantity, method, printed_value, unit, ..."),
    ] = None,
    output_format: Annotated[
        Literal["table", "json", "csv", "markdown"], typer.Option("--format", help="what to print")
    ] = "table",
) -> None:
    from dpscope.analysis.epoch_times.report import run_estimate

    sys.stdout.write(run_estimate(table, output_format, claims).rstrip() + "\n")
