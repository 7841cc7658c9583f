"""Trainings and measured cells in Weights & Biases, offline unless the user requests online runs.

R/wandb/offline-run-<time>-<id>/    a run per training (cell and seed) or measured cell; `wandb
sync` uploads it

wandb is an optional extra and is imported only here. Even offline, wandb 0.31 looks up its
telemetry's host name: unless the user requests an online run or sets WANDB_ERROR_REPORTING, its
error reporting is off, so that nothing leaves the machine.
"""

import hashlib
import importlib
import importlib.util
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from dpscope.profiling.mirrors.mirror import (
    TrainingMirror,
    WriteEpoch,
    training_scalars,
    training_settings,
)
from dpscope.profiling.records.training import EpochRecord, TrainConfig
from dpscope.profiling.store.errors import DpscopeError

WandbMode = Literal["offline", "online", "disabled"]


def wandb_mirror(run: Path, config: TrainConfig | None, online: bool = False) -> TrainingMirror:
    """Mirrors the trainings of a run folder to wandb; raises DpscopeError, before anything is
    trained, as `cell_mirror` does.
    """
    mirror = cell_mirror(online)

    @contextmanager
    def mirrored(first: EpochRecord) -> Iterator[WriteEpoch]:
        name = f"{first.cell}-seed{first.seed}"
        started = mirror.start_run(run, name, first.cell, training_settings(first, config))
        yield lambda record: started.log(training_scalars(record), step=record.epoch)
        started.finish()

    return TrainingMirror(mirrored)


def cell_mirror(online: bool = False) -> "CellMirror":
    """A mirror of measured cells, logged in for online runs.

    Raises DpscopeError if wandb is not installed, the user's WANDB_MODE is invalid, or an online
    run cannot log in.
    """
    mode = wandb_mode(online)
    if importlib.util.find_spec("wandb") is None:
        raise DpscopeError(
            "--wandb: the package wandb is not installed; pip install 'dpscope[wandb]', or omit it"
        )
    if mode != "online":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    wandb: Any = importlib.import_module("wandb")
    if mode == "online":
        try:
            wandb.login()
        except wandb.errors.Error as error:
            reason = " ".join(str(error).split()).rstrip(".")
            raise DpscopeError(
                f"wandb cannot log in: {reason}; run `wandb login`, or mirror offline (--wandb)"
            ) from error
    return CellMirror(wandb, mode)


def wandb_mode(online: bool) -> WandbMode:
    """Online if requested, else the user's WANDB_MODE, else offline; raises DpscopeError for an
    invalid WANDB_MODE.
    """
    mode = "online" if online else os.environ.get("WANDB_MODE", "offline")
    if mode not in get_args(WandbMode):
        raise DpscopeError(
            f"WANDB_MODE={mode}: set it to one of {', '.join(get_args(WandbMode))}, or unset it"
        )
    return cast(WandbMode, mode)


@dataclass(frozen=True)
class CellSummary:
    """A measured cell: its settings, and the known numbers of its row, with units in their
    names.
    """

    name: str
    settings: Mapping[str, str | int]
    values: Mapping[str, float]


@dataclass(frozen=True)
class CellMirror:
    """Writes measured cells to wandb: a run per cell, its numbers as summary and as a table."""

    wandb: Any  # the package
    mode: WandbMode

    def start_run(self, run: Path, name: str, group: str, config: Mapping[str, Any]) -> Any:
        """Start a wandb run below a run folder.

        Its id follows from folder and name, so that a resumed training or repeated measurement is
        the same wandb run.
        """
        run_id = hashlib.sha256(f"{run.resolve()}/{name}".encode()).hexdigest()[:12]
        for earlier in (run / "wandb").glob(f"offline-run-*-{run_id}"):
            shutil.rmtree(earlier)
        quiet = {
            "silent": True,
            "console": "off",
            "disable_code": True,
            "disable_git": True,
            "x_disable_stats": True,
        }
        return self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "dpscope"),
            dir=str(run),
            id=run_id,
            name=name,
            group=group,
            config=dict(config),
            mode=self.mode,
            resume="allow" if self.mode == "online" else None,
            settings=self.wandb.Settings(**quiet),
        )

    def write(self, run: Path, cells: Sequence[CellSummary]) -> None:
        """Write a wandb run for each cell, which replaces that of an earlier call for the same
        folder.
        """
        for cell in cells:
            mirrored = self.start_run(run, cell.name, run.name, cell.settings)
            mirrored.summary.update(dict(cell.values))
            table = self.wandb.Table(
                columns=["measure", "value"], data=[list(pair) for pair in cell.values.items()]
            )
            mirrored.log({"summary": table})
            mirrored.finish()
