"""The measured cells of a run in Weights & Biases: a wandb run per cell, its numbers as summary and as a table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpscope.profiling.mirrors.wandb_mirror import WandbMode, open_wandb, start_run


@dataclass(frozen=True)
class CellSummary:
    """A measured cell: `settings` say what it is, `values` are the known numbers of its row, units in their names."""

    name: str
    settings: Mapping[str, str | int]
    values: Mapping[str, float]


class CellMirror:
    """Writes cells once they are measured."""

    def __init__(self, wandb: Any, mode: WandbMode) -> None:
        self._wandb, self._mode = wandb, mode

    def write(self, run: Path, cells: Sequence[CellSummary]) -> None:
        """A wandb run for each cell; the one of an earlier call of the same folder takes its place."""
        for cell in cells:
            mirrored = start_run(self._wandb, self._mode, run, cell.name, os.fspath(run.name), dict(cell.settings))
            mirrored.summary.update(dict(cell.values))
            table = self._wandb.Table(columns=["measure", "value"], data=[list(one) for one in cell.values.items()])
            mirrored.log({"summary": table})
            mirrored.finish()


def cell_mirror(online: bool = False) -> CellMirror:
    """Raises DpscopeError, before anything is measured, as `wandb_mirror` does."""
    return CellMirror(*open_wandb(online))
