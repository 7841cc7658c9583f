"""`dpscope whatif`: the step of a configuration that was not measured, with its error."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import (
    NOTHING_PREDICTED,
    PREDICTED_NOTHING,
    Help,
    Idle,
    OptionValues,
    Request,
    argument,
    open_console,
    option,
)
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.typed_text import MIB
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.shown_text import write_out

if TYPE_CHECKING:
    from rich.console import Console

    from dpscope.analysis.what_if.answer import RunAnswer


HELP = Help(
    examples=("runs/mine --devices 4,8", "traces/ --link 50GB/s,100GB/s"),
    exit_statuses=(
        ("0", "success"),
        ("2", "a mistake in the command or its input, such as a trace that is cut short"),
        PREDICTED_NOTHING,
    ),
)


def _reads_run(values: OptionValues) -> bool:
    return options.holds_run(values["paths"][0])


IDLE = (
    Idle(
        "cell",
        lambda values: not _reads_run(values),
        "it chooses a cell of a run folder, and none was named",
    ),
    Idle("base_devices base_batch_size base_bucket_mb steps_by", _reads_run, "a run contains it"),
)


@dataclass(frozen=True, kw_only=True)
class WhatIfRequest(Request):
    paths: list[Path] = argument("a run folder, or traces of one job", metavar="PATH ...")
    cell: str | None = option("the cell of a run to predict from, such as ddp-d2-b32")
    devices: str | None = option("device counts to predict, such as 32,64")
    per_node: str | None = option(
        "devices on a node; default: full nodes as measured, or the one node of the base",
        metavar="DEVICES",
    )
    link: str | None = option(
        "the link that limits: between nodes if there are several, else within the node; "
        'such as 100Gb/s, "NVLink 4", "reached 11GB/s"'
    )
    bucket_mb: str | None = option("DDP's bucket_cap_mb, such as 5,50 (MiB), 25MB or default")
    comm_hook: str | None = option("how gradients travel: none, fp16, bf16")
    batch_size: str | None = option("per device and step, such as 32,128")
    accumulate: str | None = option(
        "micro-batches of a step, of the measured size", metavar="COUNT"
    )
    overlap: str | None = option("off: one bucket, reduced after backward", metavar="OFF")
    on_time: str | None = option("a rank that is no longer late, such as 1", metavar="RANK")
    base_devices: int | None = option("of a trace: devices of its job", min=1)
    base_batch_size: int | None = option("of a trace: its batch per device", min=1)
    base_bucket_mb: str | None = option("of a trace: its bucket_cap_mb, such as 25")
    steps_by: options.StepsBy = None
    output_format: Literal["table", "json"] = option("what to print", "--format", default="table")


def whatif(request: WhatIfRequest) -> None:
    """By a replay of steps, of which the user states what traces may not show."""
    for path in request.paths:
        if not path.exists():
            raise DpscopeError(f"{path} does not exist; give a run folder, or traces of one job")
    bucket_bytes = options.read_size("--base-bucket-mb", request.base_bucket_mb, MIB)
    from dpscope.analysis.what_if import options as scenario_options

    requested = {name: getattr(request, name) for name in scenario_options.SCENARIO_OPTIONS}
    scenarios = scenario_options.scenarios_of(requested)
    from dpscope.analysis.output.run_screen import load
    from dpscope.analysis.text.terminal import progress
    from dpscope.analysis.what_if import answer, bases, cell_errors

    if options.trainings_alone({"paths": request.paths}):
        path = request.paths[0]
        raise DpscopeError(
            f"{path} holds trainings alone, which trace no step: measure one with dpscope run --out {path}"
        )
    if options.holds_run(request.paths[0]):
        if len(request.paths) > 1:
            raise DpscopeError(f"{request.paths[0]} is a run folder: give it alone")
        if request.cell is not None:
            bases.check_cell(request.paths[0], request.cell)
        run = load(request.paths[0])
        with progress("Replaying the base"):
            question = bases.base_of_loaded(run, request.cell)
    else:
        bucket_mb = None if bucket_bytes is None else bucket_bytes / MIB
        with progress():
            question = bases.base_of_traces(
                request.paths,
                request.base_devices,
                request.base_batch_size,
                bucket_mb,
                options.read_limits(None, None, request.steps_by),
            )
    with progress("Predicting") as update:
        update("the run's other cells")
        question, errors = cell_errors.with_cell_errors(question)
        update(counted(len(scenarios), "scenario"))
        answered = answer.run_answer(
            question, errors, scenario_options.placed(question.base, scenarios)
        )
    if request.output_format == "json":
        write_out(answered.as_json() + "\n")
    else:
        _print(open_console(), answered)
    if question.cut_short:
        from dpscope.analysis.output.trace_tables import trace_status

        raise typer.Exit(trace_status((), question.cut_short))
    if not answered.known:
        raise typer.Exit(NOTHING_PREDICTED)


def _print(console: "Console", answered: "RunAnswer") -> None:
    """What has no prediction, the base and what limits it, the tables, what they rest on."""
    from dpscope.analysis.text.terminal import print_notes, print_sentences, print_table

    first = [
        *answered.changes,
        *answered.refusals,
        answered.base_line,
        *answered.limits,
        *answered.as_base,
    ]
    if answered.hint is not None:
        first.append(answered.hint)
    print_sentences(console, first)
    if answered.hint is not None or not answered.known:
        return
    notes: tuple[str, ...] = ()
    for name, table in answered.tables.items():
        if name == "what_if":
            notes = table.notes
            table = replace(table, notes=())
        print_table(console, table)
    print_notes(console, "What this rests on", [note for note in notes if note not in first])
