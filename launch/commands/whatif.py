"""`dpscope whatif`: the step of a configuration that was not measured, with its error."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Idle, OptionValues, Request, argument, open_console, option
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.typed_text import MIB
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_bytes
from dpscope.profiling.store.ownership import check_overwritable
from dpscope.profiling.store.shown_text import write_out

if TYPE_CHECKING:
    from dpscope.analysis.what_if.answer import RunAnswer

_TABLES = (".csv", ".tsv")


def _reads_table(values: OptionValues) -> bool:
    return bool(values["paths"][0].suffix.lower() in _TABLES)


def _reads_run(values: OptionValues) -> bool:
    return options.holds_run(values["paths"][0])


IDLE = (
    Idle("per_node batch_size", "measured", "the rows of --measured contain it"),
    Idle(
        "cell link inter intra bucket_mb comm_hook accumulate overlap faster on_time jitter figure base_devices "
        "base_batch_size base_bucket_mb",
        _reads_table,
        "a table of step times does not show its effect; give a run or a trace",
    ),
    Idle("measured", lambda values: not _reads_table(values), "it is for a table, and a run or a trace was named"),
    Idle(
        "gradient_bytes",
        lambda values: _reads_table(values) and values["output_format"] == "csv",
        "CSV has a row for each prediction and none for the rates of links",
    ),
    Idle("cell", lambda values: not _reads_run(values), "it chooses a cell of a run folder, and none was named"),
    Idle("base_devices base_batch_size base_bucket_mb gradient_bytes", _reads_run, "a run contains it"),
)


@dataclass(frozen=True, kw_only=True)
class WhatIfRequest(Request):
    paths: list[Path] = argument("a run folder, traces of one job, or a CSV table of measured steps")
    cell: str | None = option("the cell of a run to predict from, such as ddp-d2-b32")
    devices: str | None = option("device counts to predict, such as 32,64")
    per_node: str | None = option("devices on a node; default: full nodes as measured, or the one node of the base")
    link: str | None = option(
        "the link that limits: between nodes if there are several, else within the node; "
        'such as 100Gb/s, "NVLink 4", "reached 11GB/s"'
    )
    inter: str | None = option(
        'of two levels the link between nodes, such as 100Gb/s, "InfiniBand HDR", "reached 11GB/s"'
    )
    intra: str | None = option('of two levels the link within a node, such as "NVLink 4"')
    bucket_mb: str | None = option("DDP's bucket_cap_mb, such as 5,50 (MiB), 25MB or default")
    comm_hook: str | None = option("how gradients travel: none, fp16, bf16")
    batch_size: str | None = option("per device and step, such as 32,128")
    accumulate: str | None = option("micro-batches of a step, of the measured size")
    overlap: str | None = option("off: one bucket, reduced after backward")
    faster: str | None = option("how much faster the device computes, such as 1.7")
    on_time: str | None = option("a rank that is no longer late, such as 7")
    jitter: str | None = option("how late a rank is, of the step, such as 3%")
    measured: Path | None = option("of a table: CSV of measured steps to predict and be scored on")
    base_devices: int | None = option("of a trace: devices of its job", min=1)
    base_batch_size: int | None = option("of a trace: its batch per device", min=1)
    base_bucket_mb: str | None = option("of a trace: its bucket_cap_mb, such as 25")
    gradient_bytes: str | None = option("of a trace or a table: size of all gradients, such as 44.7MB", metavar="SIZE")
    figure: Path | None = option("draw efficiency over devices, *.png, *.svg or *.pdf")
    output_format: Literal["table", "json", "csv"] = option("what to print", "--format", default="table")


def whatif(request: WhatIfRequest) -> None:
    gradient_bytes = options.read_size("--gradient-bytes", request.gradient_bytes)
    bucket_bytes = options.read_size("--base-bucket-mb", request.base_bucket_mb, MIB)
    for path in request.paths:
        if not path.exists():
            raise DpscopeError(f"{path} does not exist; give a run folder, traces of one job, or a CSV table")
    if request.paths[0].suffix.lower() in _TABLES:
        _of_table(request, gradient_bytes)
    else:
        _of_run_or_traces(request, bucket_bytes, gradient_bytes)


def _of_table(request: WhatIfRequest, gradient_bytes: float | None) -> None:
    table, measured = request.paths[0], request.measured
    if len(request.paths) > 1:
        raise DpscopeError(f"{table} is a table: give it alone")
    if (request.devices is None) == (measured is None):
        raise DpscopeError("name what to predict: --devices 32,64, or --measured OTHER.csv, one of them")
    if not table.is_file():
        raise DpscopeError(f"{table} is not a file; give a CSV table")
    from dpscope.analysis.text.terminal import print_sentences, print_table
    from dpscope.analysis.text.text_table import render
    from dpscope.analysis.what_if import table_answer as what_if
    from dpscope.analysis.what_if.options import whole_numbers

    if measured is not None:
        answer = what_if.score_table(table, measured, gradient_bytes)
    else:
        devices = whole_numbers(request.devices or "", "--devices")
        batches = request.batch_size and whole_numbers(request.batch_size, "--batch-size")
        each = whole_numbers(request.per_node, "--per-node") if request.per_node is not None else (None,)
        if len(each) > 1:
            raise DpscopeError(f"--per-node {request.per_node}: give one number for a table")
        answer = what_if.predict_table(table, devices, each[0], batches or None, gradient_bytes)
    if request.output_format == "json":
        write_out(answer.as_json() + "\n")
    elif request.output_format == "csv":
        write_out(render(what_if.prediction_table(answer), "csv"))
    else:
        console = open_console()
        sentences = what_if.table_answer_sentences(answer)
        print_sentences(console, sentences)
        if not sentences or any(one.low_us is not None for _, _, one in answer.predictions):
            print_table(console, what_if.prediction_table(answer))
        print_sentences(console, what_if.error_sentences(answer))


def _of_run_or_traces(request: WhatIfRequest, bucket_bytes: float | None, gradient_bytes: float | None) -> None:
    """By a replay of steps, of which the user states what traces may not show."""
    from dpscope.analysis.what_if import options as scenario_options

    requested = {name: getattr(request, name) for name in scenario_options.SCENARIO_OPTIONS}
    scenarios = scenario_options.scenarios_of(requested)
    if request.figure is not None:
        _check_figure(request.figure)
    from dpscope.analysis.output.analyze import load
    from dpscope.analysis.text.terminal import progress
    from dpscope.analysis.what_if import answer, bases, cell_errors

    if options.holds_run(request.paths[0]):
        if len(request.paths) > 1:
            raise DpscopeError(f"{request.paths[0]} is a run folder: give it alone")
        run = load(request.paths[0])
        with progress("Replaying the base"):
            question = bases.base_of_loaded(run, request.cell)
    else:
        bucket_mb = None if bucket_bytes is None else bucket_bytes / MIB
        stated = bases.StatedJob(request.base_devices, request.base_batch_size, bucket_mb, gradient_bytes)
        with progress():
            question = bases.base_of_traces(request.paths, stated)
    scenarios = scenario_options.placed(question.base, scenarios)
    with progress("Predicting") as update:
        update("the run's other cells")
        question, own = cell_errors.with_cell_errors(question)
        update(counted(len(scenarios), "scenario"))
        answered = answer.run_answer(question, own, scenarios)
    _print_answer(answered, request.output_format)
    if request.figure is not None:
        drawn = answered.drawn(request.figure.suffix)
        check_overwritable(request.figure)
        write_bytes(request.figure, drawn)
    if question.cut_short:
        from dpscope.analysis.output.traces import trace_status

        raise typer.Exit(trace_status((), question.cut_short))


def _print_answer(answered: "RunAnswer", output_format: Literal["table", "json", "csv"]) -> None:
    from dpscope.analysis.text.terminal import print_table, progress
    from dpscope.analysis.text.text_table import render
    from dpscope.analysis.what_if.answer import csv_table

    if output_format == "json":
        write_out(answered.as_json() + "\n")
    elif output_format == "csv":
        write_out(render(csv_table(answered), "csv"))
    else:
        console = open_console()
        with progress("Removing one part at a time"):
            tables = answered.tables
        for table in tables.values():
            print_table(console, table)


_FIGURES = (".png", ".svg", ".pdf")


def _check_figure(path: Path) -> None:
    """Raise DpscopeError for a name of another kind, a folder that is not there and a file that is not dpscope's."""
    if path.suffix not in _FIGURES:
        raise DpscopeError(f"{path} must end in {', '.join(_FIGURES)}")
    if not path.parent.is_dir():
        raise DpscopeError(f"{path.parent} does not exist; make it first")
    check_overwritable(path)
