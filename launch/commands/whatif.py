"""`dpscope whatif`: the step of a configuration that was not measured, with its error."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Idle, OptionValues
from dpscope.profiling.records.typed_text import MIB
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from dpscope.analysis.what_if.answers.options import WhatIfOptions

_TABLES = (".csv", ".tsv")
_Text = str | None


def _reads_table(values: OptionValues) -> bool:
    return bool(values["paths"][0].suffix.lower() in _TABLES)


def _reads_run(values: OptionValues) -> bool:
    return options.holds_run(values["paths"][0])


IDLE = (
    Idle(
        ("per_node", "batch_size"),
        lambda values: values["measured"] is not None,
        "the rows of --measured contain it",
    ),
    Idle(
        (
            *(
                "cell",
                "link",
                "inter",
                "intra",
                "bucket_mb",
                "comm_hook",
                "accumulate",
                "overlap",
                "strategy",
                "faster",
                "jitter",
            ),
            *(
                "solve",
                "need",
                "trace",
                "figure",
                "base_devices",
                "base_batch_size",
                "base_bucket_mb",
            ),
        ),
        _reads_table,
        "a table of step times does not show its effect; give a run or a trace",
    ),
    Idle(
        ("measured",),
        lambda values: not _reads_table(values),
        "it is for a table, and a run or a trace was named",
    ),
    Idle(
        ("cell",),
        lambda values: not options.holds_run(values["paths"][0]),
        "it chooses a cell of a run folder, and none was named",
    ),
    Idle(
        ("base_devices", "base_batch_size", "base_bucket_mb", "gradient_bytes"),
        _reads_run,
        "a run contains it",
    ),
    Idle(
        ("need",),
        lambda values: values["solve"] in (None, "bucket-mb", "strategy"),
        "it is the target of --solve inter, intra, faster or devices",
    ),
)


def whatif(
    paths: Annotated[
        list[Path], typer.Argument(help="a run folder, traces of one job, or a CSV table of measured steps")
    ],
    cell: Annotated[_Text, typer.Option(help="the cell of a run to predict from, such as ddp-d2-b32")] = None,
    devices: Annotated[_Text, typer.Option(help="device counts to predict, such as 32,64")] = None,
    per_node: Annotated[_Text, typer.Option(help="devices on a node; default: as measured")] = None,
    link: Annotated[
        _Text,
        typer.Option(
            help="the link that limits: between nodes if there are several, else within the node; "
            'such as 100Gb/s, "NVLink 4", "reached 11GB/s"'
        ),
    ] = None,
    inter: Annotated[
        _Text,
        typer.Option(help='of two levels the link between nodes, such as 100Gb/s, "InfiniBand HDR", "reached 11GB/s"'),
    ] = None,
    intra: Annotated[_Text, typer.Option(help='of two levels the link within a node, such as "NVLink 4"')] = None,
    bucket_mb: Annotated[_Text, typer.Option(help="DDP's bucket_cap_mb, such as 5,50 (MiB), 25MB or default")] = None,
    comm_hook: Annotated[_Text, typer.Option(help="how gradients travel: none, fp16, bf16")] = None,
    batch_size: Annotated[_Text, typer.Option(help="per device and step, such as 32,128")] = None,
    accumulate: Annotated[_Text, typer.Option(help="micro-batches of a step, of the measured size")] = None,
    overlap: Annotated[_Text, typer.Option(help="off: one bucket, reduced after backward")] = None,
    strategy: Annotated[_Text, typer.Option(help="ddp, or dp for DataParallel in its place")] = None,
    faster: Annotated[
        _Text, typer.Option(help='how much faster the device computes, such as 1.7, or another GPU: "H100 SXM5"')
    ] = None,
    jitter: Annotated[_Text, typer.Option(help="how late a rank is, of the step, such as 3%")] = None,
    solve: Annotated[
        _Text, typer.Option(help="find: link (or inter, intra), faster, devices (with --need), bucket-mb, strategy")
    ] = None,
    need: Annotated[_Text, typer.Option(help="the target of --solve: efficiency=0.95 or step-ms=100")] = None,
    measured: Annotated[
        Path | None, typer.Option(help="of a table: CSV of measured steps to predict and be scored on")
    ] = None,
    base_devices: Annotated[int | None, typer.Option(min=1, help="of a trace: devices of its job")] = None,
    base_batch_size: Annotated[int | None, typer.Option(min=1, help="of a trace: its batch per device")] = None,
    base_bucket_mb: Annotated[_Text, typer.Option(help="of a trace: its bucket_cap_mb, such as 25")] = None,
    gradient_bytes: Annotated[
        _Text, typer.Option(metavar="SIZE", help="of a trace or a table: size of all gradients, such as 44.7MB")
    ] = None,
    trace: Annotated[Path | None, typer.Option(help="write the first scenario's step as a Chrome trace")] = None,
    figure: Annotated[Path | None, typer.Option(help="draw efficiency over devices, *.png or *.svg")] = None,
    output_format: Annotated[Literal["table", "json", "csv"], typer.Option("--format", help="what to print")] = "table",
) -> None:
    from dpscope.analysis.what_if.answers.options import WhatIfOptions

    requested = WhatIfOptions(
        devices,
        per_node,
        link,
        inter,
        intra,
        bucket_mb,
        comm_hook,
        batch_size,
        accumulate,
        overlap,
        strategy,
        faster,
        jitter,
    )
    gradients = options.read_size("--gradient-bytes", gradient_bytes)
    bucket = options.read_size("--base-bucket-mb", base_bucket_mb, MIB)
    for path in paths:
        if not path.exists():
            raise DpscopeError(f"{path} does not exist; give a run folder, traces of one job, or a CSV table")
    if paths[0].suffix.lower() in _TABLES:
        _of_table(paths, requested, measured, gradients, output_format)
        return
    from dpscope.launch.commands.whatif_runs import RunQuestion, of_run_or_traces

    of_run_or_traces(
        paths,
        RunQuestion(requested, cell, solve, need, trace, figure, output_format),
        (base_devices, base_batch_size, None if bucket is None else bucket / MIB, gradients),
    )


def _of_table(
    paths: list[Path],
    requested: "WhatIfOptions",
    measured: Path | None,
    gradient_bytes: float | None,
    output_format: str,
) -> None:
    """From a table alone."""
    table = paths[0]
    if len(paths) > 1:
        raise DpscopeError(f"{table} is a table: give it alone")
    if (requested.devices is None) == (measured is None):
        raise DpscopeError("name what to predict: --devices 32,64, or --measured OTHER.csv, one of them")
    if not table.is_file():
        raise DpscopeError(f"{table} is not a file; give a CSV table")
    from rich.console import Console

    from dpscope.analysis.text.terminal import print_sentences, print_table
    from dpscope.analysis.text.text_table import render
    from dpscope.analysis.what_if import table_answer as what_if
    from dpscope.analysis.what_if.answers.options import whole_numbers

    if measured is not None:
        answer = what_if.score_table(table, measured, gradient_bytes)
    else:
        batches = requested.batch_size and whole_numbers(requested.batch_size, "--batch-size")
        each = whole_numbers(requested.per_node, "--per-node") if requested.per_node is not None else (None,)
        if len(each) > 1:
            raise DpscopeError(f"--per-node {requested.per_node}: give one number for a table")
        answer = what_if.predict_table(
            table, whole_numbers(requested.devices or "", "--devices"), each[0], batches or None, gradient_bytes
        )
    if output_format == "json":
        sys.stdout.write(answer.as_json() + "\n")
    elif output_format == "csv":
        sys.stdout.write(render(what_if.prediction_table(answer), "csv"))
    else:
        console = Console(markup=False)
        sentences = what_if.table_answer_sentences(answer)
        print_sentences(console, sentences)
        if not sentences or any(one.low_us is not None for one in answer.predictions):
            print_table(console, what_if.prediction_table(answer))
        print_sentences(console, what_if.error_sentences(answer))
