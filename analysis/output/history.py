"""`dpscope compare A B C ...`: runs in the order of time or of their commits, each cell's step as a column of times."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import pooled_median
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA, choose_unit, show
from dpscope.profiling.records.run import SHORT_HASH_DIGITS, Commit
from dpscope.profiling.store.errors import NotComparableError

HistoryOrder = Literal["time", "commit"]
_ORDERS: dict[HistoryOrder, str] = {
    "time": "in the order in which the runs were started",
    "commit": "in the order in which the commits were made; runs of one commit by when they were started",
}


def in_order(runs: Sequence[RunData], by: HistoryOrder = "time") -> list[RunData]:
    """By the time at which they started, or of the commit whose code they measured.

    Raises NotComparableError for traces, which record neither, and with `by` commit for runs without one.
    """
    for run in runs:
        if run.recorded is None:
            raise NotComparableError(
                f"{run.path} holds traces alone, which do not record when they were made; name runs"
            )
        if by == "commit" and _commit(run) is None:
            raise NotComparableError(
                f"{run.path}: its manifest holds no commit: it was measured outside a git checkout, or by an older dpscope; "
                "omit --by commit"
            )
    begun = sorted(runs, key=lambda run: datetime.fromisoformat(run.manifest.created_at))
    return sorted(begun, key=_committed) if by == "commit" else begun


def history_table(runs: Sequence[RunData], by: HistoryOrder = "time") -> TextTable:
    """A row per run and a column per cell, medians of untraced steps; NA where a run did not measure the cell."""
    cells = list(dict.fromkeys(data.cell.name for run in runs for data in run.measured))
    steps = {
        (index, data.cell.name): pooled_median(data.step_samples())
        for index, run in enumerate(runs)
        for data in run.measured
    }
    unit = choose_unit("time", list(steps.values()))
    rows = [
        (
            run.path.name,
            run.manifest.created_at[:16],
            _shown(_commit(run)),
            *(show(steps.get((index, cell)), unit) for cell in cells),
        )
        for index, run in enumerate(runs)
    ]
    headings = ("run", "begun", "commit", *(f"{cell} [{unit.label}]" for cell in cells))
    return TextTable(f"Steps by {by}", headings, tuple(rows), (_ORDERS[by], *_notes(runs)))


def _notes(runs: Sequence[RunData]) -> list[str]:
    commits = [_commit(run) for run in runs]
    notes = []
    if any(one is not None and one.changed for one in commits):
        notes.append("+: tracked files differed from the commit when the run was started")
    if None in commits:
        notes.append(f"commit {NA}: measured outside a git checkout, or by an older version of dpscope")
    return notes


def _commit(run: RunData) -> Commit | None:
    return run.manifest.environment.commit


def _committed(run: RunData) -> datetime:
    commit = _commit(run)
    assert commit is not None
    return datetime.fromisoformat(commit.committed_at)


def _shown(commit: Commit | None) -> str:
    return NA if commit is None else commit.name[:SHORT_HASH_DIGITS] + "+" * commit.changed
