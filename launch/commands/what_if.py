"""`dpscope whatif`: the step of a configuration that nobody has run, with its error shown."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dpscope.profiling.store.errors import DpscopeError


def whatif(
    table: Annotated[Path, typer.Argument(help="CSV of measured steps: ranks, nodes, batch_per_rank, step_ms, ...")],
    devices: Annotated[str | None, typer.Option(help="device counts to predict, such as 32,64")] = None,
    per_node: Annotated[
        int | None, typer.Option(min=1, help="devices on a node; unless given, the table's most")
    ] = None,
    batch_size: Annotated[
        str | None, typer.Option(help="per device, such as 32,128; unless given, the table's")
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(help="CSV of measured steps to predict and be scored on, in place of --devices")
    ] = None,
    output_format: Annotated[Literal["table", "json", "csv"], typer.Option("--format", help="what to print")] = "table",
) -> None:
    """Estimate steps on other numbers of devices from a table of measured ones, with a band, or say why not."""
    if (devices is None) == (measured is None):
        raise DpscopeError("say what to predict: --devices 32,64, or --measured OTHER.csv, one of them")
    if not table.is_file():
        raise DpscopeError(f"{table} does not exist" if not table.exists() else f"{table} is no file; give a CSV table")
    from rich.console import Console

    from dpscope.analysis.text.terminal import print_table
    from dpscope.analysis.text.text_table import render
    from dpscope.analysis.what_if import table_answer as what_if

    if measured is not None:
        answer = what_if.score_table(table, measured)
    else:
        batches = what_if.batch_sizes(batch_size) if batch_size is not None else None
        answer = what_if.ask_table(table, what_if.Question(what_if.device_counts(devices or ""), per_node, batches))
    if output_format == "json":
        sys.stdout.write(answer.as_json() + "\n")
    elif output_format == "csv":
        sys.stdout.write(render(what_if.prediction_table(answer), "csv"))
    else:
        console = Console()
        print_table(console, what_if.prediction_table(answer))
        for said in what_if.error_sentences(answer):
            console.print(said, highlight=False)
