"""`dpscope reduce`: traces to one small file, where they lie."""

from dataclasses import MISSING
from pathlib import Path

import typer

from dpscope.launch.commands import options
from dpscope.launch.commands.command import Help, Idle, argument, open_console, option
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import is_run_folder
from dpscope.profiling.store.shown_text import complain

HELP = Help(examples=("/scratch/traces -o partials/  # on each node", "partials/ -o all.dpscope"))

IDLE = (
    Idle(
        "share jobs max_bytes max_events steps_by",
        options.any_partial,
        "partials are joined by one task, which reads no trace",
    ),
)


def reduce(
    paths: list[Path] = argument(
        "trace files or folders of them; or partials, to join them", metavar="PATH ..."
    ),
    output: Path = option(
        "a file *.dpscope, or a folder, in which the file is named after the host or the share",
        *("--output", "-o"),
        default=MISSING,
    ),
    share: str | None = option(
        "which share of the traces in a shared folder: auto (from Slurm, Open MPI or PMI), or K/N such as 3/16"
    ),
    jobs: int | None = option("processes that read traces; default: one per core"),
    max_bytes: options.MaxBytes = None,
    max_events: options.MaxEvents = None,
    steps_by: options.StepsBy = None,
) -> None:
    limits = options.read_limits(max_bytes, max_events, steps_by)
    runs = [path for path in paths if is_run_folder(path)]
    if runs:
        raise DpscopeError(
            f"{runs[0]} is a run folder, of several jobs: name the traces of one, such as {runs[0]}/cells/CELL/repeat0/traces; "
            "dpscope bundle packs a whole run"
        )
    if jobs is not None and jobs < 1:
        raise DpscopeError(f"--jobs {jobs}: must be 1 or more")
    from dpscope.analysis.output.trace_tables import trace_status
    from dpscope.analysis.text.terminal import progress
    from dpscope.analysis.text.units import show_bytes
    from dpscope.analysis.traces.ranks.reduce import read_share, reduce_traces

    shared = None if share is None else read_share(share)
    with progress() as update:
        made = reduce_traces(
            paths,
            output,
            shared,
            limits,
            jobs=jobs,
            progress=lambda done, of: update(f"{done} of {of} read"),
        )
    size = show_bytes(made.path.stat().st_size)
    earlier = f", {made.kept} of them reduced before" if made.kept else ""
    lines = [
        f"Written: {made.path}: {counted(made.ranks, 'trace')} in {size}{earlier}",
        f"Next: dpscope analyze {made.path}, or a folder with the files of all nodes",
    ]
    open_console().print("\n".join(lines), highlight=False, soft_wrap=True)
    for file in made.unread:
        complain(f"not read: {file.message}")
    raise typer.Exit(2 if made.unread else trace_status((), made.cut_short))
