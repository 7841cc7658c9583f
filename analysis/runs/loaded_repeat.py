"""One repeat of a cell as its files tell it, each of them read once."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pandas as pd

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.run import Cell, CellResult, RankResult
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder, RunFolder


@dataclass(frozen=True)
class LoadedRepeat:
    """A repeat that has a result. One that did not end well, or lost files since, has neither ranks nor samples."""

    index: int
    folder: RepeatFolder
    result: CellResult
    ranks: tuple[RankResult, ...] = ()  # what each process said, in the order of ranks
    samples: pd.DataFrame = field(default_factory=pd.DataFrame)  # RepeatFolder.samples
    missing_parts: str | None = None  # what a repeat that says it is done lacks: sums over the ranks left would lie


def load_repeats(run: RunFolder, cell: Cell) -> Iterator[LoadedRepeat]:
    """The repeats of a cell that have a result, in order, one after another: no two of them are in memory at once.

    Runs of older versions may hold repeats over other numbers of nodes: those unlike the first are left out.
    """
    nodes = None
    for index, folder in run.repeats(cell):
        result = folder.result()
        if result is None:
            continue
        one = LoadedRepeat(index, folder, result) if result.status != "ok" else _done(cell, index, folder, result)
        own = len({rank.node for rank in one.ranks})
        nodes = nodes or own
        if own not in (0, nodes):
            unlike = f"it ran on {own} node{'s' * (own > 1)}, the first repeat on {nodes}, so they are not repeats of one cell"
            one = LoadedRepeat(index, folder, result, missing_parts=unlike)
        yield one


def _done(cell: Cell, index: int, folder: RepeatFolder, result: CellResult) -> LoadedRepeat:
    try:
        ranks = tuple(folder.ranks())
        if (found := len({rank.rank for rank in ranks})) != cell.processes:
            missing = f"it holds results of {found} of {counted(cell.processes, 'rank')}"
            return LoadedRepeat(index, folder, result, missing_parts=missing)
        return LoadedRepeat(index, folder, result, ranks, folder.samples(ranks))
    except (OSError, ValueError, DpscopeError) as error:
        return LoadedRepeat(index, folder, result, missing_parts=" ".join(str(error).split()))
