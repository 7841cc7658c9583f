"""`dpscope estimate`: published or hand-timed epoch times, judged, and predicted for other device
counts.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from dpscope.launch.commands.command import (
    NOTHING_PREDICTED,
    PREDICTED_NOTHING,
    Help,
    argument,
    open_console,
    option,
)
from dpscope.profiling.store.shown_text import write_out

if TYPE_CHECKING:
    from rich.console import Console

    from dpscope.analysis.epoch_times.report import Answer

HELP = Help(
    examples=("times.csv", "times.csv --predict 8,16"),
    exit_statuses=(*Help.exit_statuses, PREDICTED_NOTHING),
)


def estimate(
    table: Path = argument(
        "CSV of epoch times (strategy, batch_size, devices, epoch_seconds, ...) or of step times (ranks, step_ms, ...)"
    ),
    predict: str | None = option(
        "device counts or layouts to predict the time of, such as 8,16 or 2x8", metavar="COUNTS"
    ),
    output_format: Literal["table", "json", "markdown"] = option(
        "what to print", "--format", default="table"
    ),
) -> None:
    from dpscope.analysis.epoch_times.report import run_estimate, run_prediction

    answer: Answer | str
    any_known = True
    if predict:
        answer, any_known = run_prediction(table, predict, output_format)
    else:
        answer = run_estimate(table, output_format)
    if isinstance(answer, str):
        write_out(answer.rstrip() + "\n")
    else:
        _print(open_console(), answer)
    if not any_known:
        raise typer.Exit(NOTHING_PREDICTED)


def _print(console: "Console", answer: "Answer") -> None:
    from dpscope.analysis.text.terminal import print_findings, print_sentences, print_table

    print_sentences(console, answer.first.splitlines())
    for answer_table in answer.tables:
        print_table(console, answer_table)
    if answer.tables:
        print_sentences(console, ["", answer.legend])
    print_findings(console, answer.findings)
