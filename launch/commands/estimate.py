"""`dpscope estimate`: published or hand-timed epoch times, judged, and predicted for other device
counts.
"""

from pathlib import Path
from typing import Literal

from dpscope.launch.commands.command import Help, argument, open_console, option
from dpscope.profiling.store.shown_text import write_out

HELP = Help(examples=("times.csv", "times.csv --predict 8,16"))


def estimate(
    table: Path = argument(
        "CSV of epoch times (strategy, batch_size, devices, epoch_seconds, ...) or of step times (ranks, step_ms, ...)"
    ),
    predict: str | None = option(
        "device counts or layouts to predict the time of, such as 8,16 or 2x8"
    ),
    output_format: Literal["table", "json", "markdown"] = option(
        "what to print", "--format", default="table"
    ),
) -> None:
    from dpscope.analysis.epoch_times.report import run_estimate, run_prediction
    from dpscope.analysis.text.terminal import print_findings, print_sentences, print_table

    answer = (
        run_prediction(table, predict, output_format)
        if predict
        else run_estimate(table, output_format)
    )
    if isinstance(answer, str):
        write_out(answer.rstrip() + "\n")
        return
    console = open_console()
    print_sentences(console, answer.first.splitlines())
    for answer_table in answer.tables:
        print_table(console, answer_table)
    if answer.tables:
        print_sentences(console, ["", answer.legend])
    print_findings(console, answer.findings)
