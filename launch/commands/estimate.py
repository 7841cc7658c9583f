"""`dpscope estimate`: published or hand-timed epoch times, judged."""

from pathlib import Path
from typing import Literal

from dpscope.launch.commands.command import argument, option
from dpscope.profiling.store.shown_text import write_out


def estimate(
    table: Path = argument("CSV of epoch times: strategy, batch_size, devices, epoch_seconds, ..."),
    claims: Path | None = option(
        "CSV of values derived from them, to audit: quantity, method, printed_value, unit, ..."
    ),
    output_format: Literal["table", "json", "csv", "markdown"] = option("what to print", "--format", default="table"),
) -> None:
    from dpscope.analysis.epoch_times.report import run_estimate

    write_out(run_estimate(table, output_format, claims).rstrip() + "\n")
