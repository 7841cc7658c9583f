"""What a user is told in one line of a script that is not measured, or not whole."""

import os
import sys

from dpscope.profiling.attached.optimizer_hook import BACKWARDS_WITHOUT_STEP
from dpscope.profiling.attached.settings import RAISED, AttachSettings
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.folders import is_run_folder


def without_measurement(how: str, steps: int, backwards: int, settings: AttachSettings) -> str:
    """Of a script that ended (`how`) after so many steps, before any was timed; `backwards`: its backward passes before them."""
    fewest = settings.fewest_steps
    if how.startswith(RAISED) or not (steps or backwards or settings.steps_by != "optimizer"):
        when = f"after {steps} of the {fewest} steps that are needed" if steps else "before its first training step"
        return f"{how} {when}: nothing was measured"
    if steps:
        options = settings.shorter(steps)
        advice = f"give {options}" if options else "let the script train longer"
        seen = f"{how}: nothing was measured: {counted(steps, 'step')} of {fewest} that are needed; {advice}"
        return f"{seen}{after_another_job(how, settings)}"
    if settings.steps_by != "optimizer":
        return f"{how}: no step was seen by --steps-by {settings.steps_by}; see docs/attach.md for what ends a step"
    passes = counted(backwards, "backward pass")
    return f"{how}: {passes} and no step of an optimizer of torch's; use --steps-by forward, or watch_steps"


def after_another_job(how: str, settings: AttachSettings) -> str:
    """Why a script may have had few steps: an earlier job in the same folder left a checkpoint that it resumed from."""
    if how.startswith(RAISED) or settings.own_folder or not is_run_folder(settings.out):
        return ""
    return "; if it resumed from what an earlier job saved, give each job its own folder: --work-folders DIR"


def no_optimizer() -> str:
    """Of a script that trains without an optimizer of torch's, as far as can be seen."""
    return (
        f"{BACKWARDS_WITHOUT_STEP} backward passes and no step of an optimizer of torch's: nothing is measured until one steps; "
        "if the script's optimizer is not torch's, stop it and attach with --steps-by forward"
    )


def no_group() -> str:
    """Of several processes of a script that joined no process group."""
    count = os.environ["WORLD_SIZE"]
    alone = f"nothing is measured: {count} processes run the script and it joined no process group, so each of them trains alone"
    if any(name in sys.modules for name in ("lightning.fabric", "lightning_fabric")):
        return (
            f"{alone}; Lightning does not take them from torchrun: give its Trainer devices={count} and strategy='ddp', or set "
            f"LT_DEVICES={count} LT_NUM_NODES=1 LT_STRATEGY=ddp for Fabric"
        )
    return f"{alone}; start one process (--devices 1), or let the script call init_process_group"


def started_alone(missing: int, processes: int, script: str) -> str:
    """Of a job whose other processes the script or its framework started itself, without dpscope."""
    return (
        f"nothing is measured: {missing} of {processes} processes run without dpscope, as the script or its framework started "
        f"them itself; let torchrun start all of them: dpscope attach --devices {processes} -- {script}"
    )
