"""How many repeats of each cell were measured, and what their number keeps from being known."""

from collections.abc import Iterator

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.units import counted
from dpscope.profiling.records.run import Finding


def measured_repeats(run: RunData) -> dict[str, int]:
    """Repeats that ended well, by the name of the cell; without cells that are left out or failed, which findings tell."""
    return {
        name: len({repeat for repeat, _ in data.ranks})
        for name, data in run.cells.items()
        if data.measured or not (data.skip_reason or data.results)
    }


def begun_repeats(run: RunData) -> int:
    """The most repeats that any cell has, finished or not.

    Not the plan's number: cells measured by hand follow none.
    """
    folders = ((run.folder.path / "cells" / name).glob("repeat*") for name in run.cells)
    begun = (sum(path.name.removeprefix("repeat").isdigit() for path in own) for own in folders)
    return max(*begun, *measured_repeats(run).values())


def repeats_said(run: RunData) -> str:
    """Such as ``2 repeats of every cell`` or ``1 to 2 repeats of a cell``."""
    counts = measured_repeats(run).values()
    if min(counts) == max(counts):
        return f"{counted(max(counts), 'repeat')} of every cell"
    return f"{min(counts)} to {counted(max(counts), 'repeat')} of a cell"


def repeat_findings(run: RunData) -> Iterator[Finding]:
    """Repeats that are missing, and what one repeat alone cannot tell."""
    counts, begun = measured_repeats(run), begun_repeats(run)
    fewer = [
        f"{name}: {count} of {counted(begun, 'repeat')} measured" for name, count in counts.items() if count < begun
    ]
    if fewer:
        yield Finding(
            severity="warning",
            code="repeats_missing",
            message=f"{'; '.join(fewer)}: these cells rest on fewer steps than the others, or on none",
            next_step="give the run's command again: it measures what is missing and nothing else",
        )
    if max(counts.values()) == 1:
        yield Finding(
            severity="warning",
            code="single_repeat",
            message="one repeat of each cell: how far repeats lie apart is not known, so there is no interval and no verdict",
            next_step="measure with --repeats 2 or more",
        )
