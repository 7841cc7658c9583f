"""`dpscope merge`: which traces of a run it merges, and what it prints: the ranks with their
clocks, and findings about them.
"""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dpscope.analysis.output.trace_tables import trace_status
from dpscope.analysis.text.terminal import print_findings, print_table, progress
from dpscope.analysis.text.text_table import Field, TextTable, table_of
from dpscope.analysis.text.units import NA, show_bytes
from dpscope.analysis.traces.merge.merge_ranks import MergedRank, MergedTrace, merge_traces
from dpscope.analysis.traces.ranks.readers import find_traces
from dpscope.analysis.traces.reading.chunks import ReadLimits
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder, RunFolder, is_run_folder

_VIEWER = "https://ui.perfetto.dev"


def print_merge(
    paths: Sequence[Path],
    output: Path,
    cell: str | None,
    repeat: int | None,
    limits: ReadLimits,
    console: Console,
) -> int:
    """Merge a run's cell, or trace files; the exit status, as of `dpscope analyze` on trace
    files.
    """
    runs = [path for path in paths if is_run_folder(path)]
    if runs and len(paths) > 1:
        raise DpscopeError(f"{runs[0]} is a run folder: give it alone, or trace files alone")
    chosen, number = "", 0
    if runs:
        chosen, number, files = traces_of_run(runs[0], cell, repeat)
    else:
        files = find_traces(paths)
    with progress(f"Merging {counted(len(files), 'trace')}"):
        merged = merge_traces(files, output, limits)
    if chosen:  # what was refused has printed nothing
        console.print(f"{chosen}, repeat {number}", highlight=False)
    print_table(console, clock_table(merged))
    print_findings(console, merged.findings)
    events = sum(rank.events for rank in merged.ranks)
    ranks = merged.ranks[0].title
    if len(merged.ranks) > 1:
        ranks = counted(len(merged.ranks), "rank")
    size = f"{ranks}, {counted(events, 'event')}, {show_bytes(output.stat().st_size)}"
    console.print(
        f"\nMerged: {output} ({size}); open it in {_VIEWER}", highlight=False, soft_wrap=True
    )
    return trace_status(merged.findings, merged.cut_short)


def traces_of_run(
    path: Path, cell_name: str | None = None, repeat: int | None = None
) -> tuple[str, int, list[Path]]:
    """The cell of that name, or the only one on several devices, a repeat of it (default: the
    first), and its traces.

    Raises DpscopeError naming the choices when that is not one job that has traces.
    """
    folder = RunFolder(path)
    traced = _traced(folder)
    if not traced:
        raise DpscopeError(
            f"{path} holds no cell with traces: nothing to merge; measure it with `dpscope run --out {path}`"
        )
    cells = [cell for cell, _ in traced.values()]
    # Default: the only one of several ranks, else of several devices, else the only one of the run.
    several = (
        [cell for cell in cells if cell.processes > 1]
        or [cell for cell in cells if cell.devices > 1]
        or cells
    )
    if cell_name is None and len(several) > 1:
        names = ", ".join(cell.name for cell in several)
        raise DpscopeError(
            f"{path} holds several jobs, which share no time axis; name one of {names} with --cell"
        )
    name = cell_name or several[0].name
    if name not in traced:
        raise DpscopeError(
            f"{path} holds no traces of a cell {name}; {choose_from(name, traced, 'name one of')} with --cell"
        )
    _, repeats = traced[name]
    chosen = min(repeats) if repeat is None else repeat
    if chosen not in repeats:
        done = ", ".join(map(str, repeats))
        raise DpscopeError(
            f"{name} has no finished repeat {chosen}; name one of {done} with --repeat"
        )
    return name, chosen, repeats[chosen].traces()


def _traced(folder: RunFolder) -> dict[str, tuple[Cell, dict[int, RepeatFolder]]]:
    """The cells that have traces, and their repeats that do, by their numbers."""
    cells = {}
    for planned in folder.manifest().plan:
        repeats = folder.done_repeats(planned.cell)
        traced = {number: done for number, done in repeats if done.traces()}
        if traced:
            cells[planned.cell.name] = planned.cell, traced
    return cells


def clock_table(merged: MergedTrace) -> TextTable:
    """A row per rank: its events and where its clock was set."""
    first, *others = merged.ranks

    def matched(rank: MergedRank) -> object:
        if rank is first:
            return NA
        return rank.clock.collectives

    def moved(rank: MergedRank) -> str:
        if rank is first:
            return NA
        return f"{rank.clock.moved_us:+,.3f}"

    fields = (
        Field("rank", "title"),
        Field("events", lambda rank: f"{rank.events:,}"),
        Field("matched", matched),
        Field("clock moved [µs]", moved),
        Field("residual [µs]", lambda rank: _microseconds(rank.clock.residual_us)),
        Field("worst [µs]", lambda rank: _microseconds(rank.clock.worst_us)),
    )
    notes = []
    if any(rank.clock.collectives for rank in others):
        ends = "the ends of collectives shared with ranks above them"
        notes = [
            f"the clock is that of {first.title}; the others are aligned on {ends}",
            "residual: how far those ends are apart afterwards, median and worst",
        ]
    return table_of("Ranks and their clocks", fields, merged.ranks, notes)


def _microseconds(value: float | None) -> str:
    if value is None:
        return NA
    return f"{value:,.3f}"
