"""TensorBoard's scalars of trainings in Weights & Biases, for whoever logs there. Offline unless asked otherwise.

R/wandb/offline-run-<time>-<id>/    one run per cell and seed; `wandb sync` sends it when the user wants it sent

wandb is an optional extra and is imported only here. Even offline, wandb 0.31 looks up its telemetry's host name: unless
the user asks for an online run (or sets WANDB_ERROR_REPORTING) its error reporting is off, so that nothing leaves the machine.
"""

import hashlib
import importlib
import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any, Literal, cast, get_args

from dpscope.profiling.mirrors.mirror import TrainingMirror, training_scalars, training_settings
from dpscope.profiling.records.training import EpochRecord, TrainConfig
from dpscope.profiling.store.errors import DpscopeError

WandbMode = Literal["offline", "online", "disabled"]


def wandb_mirror(run: Path, config: TrainConfig | None, online: bool = False) -> TrainingMirror:
    """Mirrors the trainings of a run folder to wandb.

    Raises DpscopeError, before anything is trained, where wandb is not installed, the user's WANDB_MODE is none, or an
    online run cannot log in.
    """
    wandb, mode = open_wandb(online)
    return TrainingMirror(lambda first: _WandbRun(wandb, mode, run, first, config))


def open_wandb(online: bool) -> tuple[Any, WandbMode]:
    """The package, logged in where runs are sent; raises DpscopeError as `wandb_mirror` does."""
    mode = wandb_mode(online)
    wandb = _import_wandb(mode)
    if mode == "online":
        _log_in(wandb)
    return wandb, mode


def start_run(wandb: Any, mode: WandbMode, run: Path, name: str, group: str, config: dict[str, Any]) -> Any:
    """A wandb run below a run folder.

    The same id for the same name there: what is resumed or measured again is one run to wandb.
    """
    run_id = hashlib.sha256(f"{run.resolve()}/{name}".encode()).hexdigest()[:12]
    for earlier in (run / "wandb").glob(f"offline-run-*-{run_id}"):
        shutil.rmtree(earlier)
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT", "dpscope"),
        dir=str(run),
        id=run_id,
        name=name,
        group=group,
        config=config,
        mode=mode,
        resume="allow" if mode == "online" else None,
        settings=wandb.Settings(silent=True, console="off", disable_code=True, disable_git=True, x_disable_stats=True),
    )


def wandb_mode(online: bool) -> WandbMode:
    """Online if asked for, else what the user has set WANDB_MODE to, else offline; raises DpscopeError."""
    if online:
        return "online"
    mode = os.environ.get("WANDB_MODE", "offline")
    if mode not in get_args(WandbMode):
        raise DpscopeError(f"WANDB_MODE={mode}: set it to one of {', '.join(get_args(WandbMode))}, or unset it")
    return cast(WandbMode, mode)


def _import_wandb(mode: WandbMode) -> Any:
    if importlib.util.find_spec("wandb") is None:
        raise DpscopeError("--wandb: the package wandb is not installed; pip install 'dpscope[wandb]', or omit it")
    if mode != "online":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    return importlib.import_module("wandb")


def _log_in(wandb: Any) -> None:
    try:
        wandb.login()
    except wandb.errors.Error as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise DpscopeError(f"wandb cannot log in: {reason}; run `wandb login`, or mirror offline (--wandb)") from error


class _WandbRun:
    def __init__(self, wandb: Any, mode: WandbMode, run: Path, first: EpochRecord, config: TrainConfig | None) -> None:
        name = f"{first.cell}-seed{first.seed}"
        self._run = start_run(wandb, mode, run, name, first.cell, training_settings(first, config))

    def epoch(self, record: EpochRecord) -> None:
        self._run.log(training_scalars(record), step=record.epoch)

    def close(self) -> None:
        self._run.finish()
