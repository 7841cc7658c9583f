"""Which traces of a run folder are one job: those of one repeat of one cell. Different jobs share no time axis."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpscope.profiling.records.run import Cell
from dpscope.profiling.records.typed_text import choose_from
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder


@dataclass(frozen=True)
class RunTraces:
    """The traces of one job of a run."""

    cell: Cell
    repeat: int
    files: tuple[Path, ...]


def traces_of_run(path: Path, cell_name: str | None = None, repeat: int | None = None) -> RunTraces:
    """The traces of the cell of that name, or of the only one on several devices; of its first repeat unless told.

    Raises DpscopeError naming the choices when that is not one job that has traces.
    """
    folder = RunFolder(path)
    traced = {
        planned.cell.name: (planned.cell, found)
        for planned in folder.manifest().plan
        if (found := {index: done for index, done in folder.done_repeats(planned.cell) if done.traces()})
    }
    if not traced:
        raise DpscopeError(
            f"{path} holds no cell with traces: nothing to merge; measure it with `dpscope run --out {path}`"
        )
    name = cell_name or _only_cell(path, [cell for cell, _ in traced.values()])
    if name not in traced:
        raise DpscopeError(
            f"{path} holds no traces of a cell {name}; {choose_from(name, traced, 'name one of')} with --cell"
        )
    cell, repeats = traced[name]
    chosen = min(repeats) if repeat is None else repeat
    if chosen not in repeats:
        raise DpscopeError(f"{name} has no finished repeat {chosen}; name one of {_listed(repeats)} with --repeat")
    return RunTraces(cell, chosen, tuple(repeats[chosen].traces()))


def _only_cell(path: Path, cells: Sequence[Cell]) -> str:
    """The cell nobody needs to name: the only one of several ranks, else of several devices, else the only one there is."""
    choices = (
        [cell for cell in cells if cell.processes > 1],
        [cell for cell in cells if cell.devices > 1],
        list(cells),
    )
    found = next(choice for choice in choices if choice)
    if len(found) > 1:
        names = _listed([cell.name for cell in found])
        raise DpscopeError(f"{path} holds several jobs, which share no time axis; name one of {names} with --cell")
    return found[0].name


def _listed(names: Iterable[object]) -> str:
    return ", ".join(str(name) for name in names)
