"""What `dpscope attach` measures in a script, and messages about scripts that are not measured.
Imports no torch.
"""

import os
import sys
from pathlib import Path
from typing import ClassVar, Literal

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.settings import AMOUNT, Config, at_least, setting

RAISED = "the script raised"  # start of the description of a script's end by an exception
REPLACED = "the script replaced its process (os.exec)"
REASONS_VARIABLE = (
    # a folder of `dpscope attach` for the reasons why processes measured nothing
    "DPSCOPE_ATTACH_REASONS"
)
# traced in addition to the whole ones: two under a tracer that discards, and one before them
TRACER_STEPS = 3
# after a trace: in the first, processes wait for those that wrote their traces more slowly
SETTLING_STEPS = 2
# without a step of a torch optimizer: more than most scripts accumulate over
BACKWARDS_WITHOUT_STEP = 20
_FEWEST_TIMED = 5  # fewer timed steps give no interval

NO_OPTIMIZER = (
    f"{BACKWARDS_WITHOUT_STEP} backward passes and no step of a torch optimizer: the measurement starts with the first one; "
    "if the script uses another optimizer, stop it and attach with --steps-by forward"
)

STEP_RECORDED = "the script recorded a step into a CUDA graph, whose replays call no optimizer"
FOR_GRAPHS = "take the loop's batches from watch_steps and attach with --steps-by call"

StepsBy = Literal["optimizer", "forward", "call"]


_TRACED_STEPS = 3


class AttachSettings(Config, frozen=True):
    """The windows of a measurement in steps of the script, and the run folder; `check_settings`
    checks them.
    """

    heading: ClassVar[str] = AMOUNT

    out: Path
    script: str  # the command, recorded in the manifest
    # the folder of the script's code, whose commit is recorded; None: no commit
    code: Path | None = None
    warmup_steps: int = setting(
        10, "steps before the timed ones", option="warmup", check=at_least(2)
    )
    steps: int = setting(50, "timed steps", check=at_least(1))
    traced_steps: int = setting(
        _TRACED_STEPS, "whole traced steps", check=at_least(1)
    )  # one more is traced; 0: no trace, in benchmarks
    steps_by: StepsBy = setting("optimizer", "what ends a step", listed=True)
    batch_size: int | None = setting(
        None, "samples per device and step; default: as the model is called", check=at_least(1)
    )
    has_work_folder: bool = False  # the script has a working folder that no other job uses
    stop_after: bool = False  # end the script once it is measured

    def options_for(self, steps: int, counters: bool = False) -> str | None:
        """The options with which a script of so many steps is measured completely; None if there
        are too few steps.

        `counters`: DDP's counters are read in steps after the timed ones.
        """
        for warmup, traced in (
            (self.warmup_steps, self.traced_steps),
            (5, self.traced_steps),
            (5, 1),
            (2, 1),
        ):
            counter_steps = traced + TRACER_STEPS + 1 if counters else 0
            timed = steps - warmup - traced - TRACER_STEPS - SETTLING_STEPS - counter_steps
            if timed >= _FEWEST_TIMED:
                fewer = f" --traced-steps {traced}" if traced != _TRACED_STEPS else ""
                return f"--warmup {warmup} --steps {min(timed, self.steps)}{fewer}"
        return None


def not_measured(
    how: str, steps: int, backwards: int, settings: AttachSettings, restarts: int = 0
) -> str:
    """For a script that ended (`how`) after `steps` steps, none of them timed, with so many
    backward passes before them.

    `restarts`: how often other optimizers took the place of the one whose steps were counted.
    """
    if how == STEP_RECORDED:
        return f"{how}: nothing was measured{further_hint(how, settings)}"
    fewest = (
        settings.warmup_steps
        + settings.traced_steps
        + TRACER_STEPS
        + SETTLING_STEPS
        + _FEWEST_TIMED
    )
    if how.startswith(RAISED) or not (steps or backwards or settings.steps_by != "optimizer"):
        when = (
            f"after {steps} of the {fewest} steps that are needed"
            if steps
            else "before its first training step"
        )
        again = "; set what it sets there before dpscope starts it, so that it need not start again"
        return f"{how} {when}: nothing was measured{again if how == REPLACED else ''}"
    if steps:
        options = settings.options_for(steps)
        advice = f"give {options}" if options else "let the script train longer"
        if restarts:
            advice = (
                "its optimizers take turns: give --steps-by forward, which counts the model's calls"
            )
        text = f"{how}: nothing was measured: {counted(steps, 'step')} of {fewest} that are needed; {advice}"
        return f"{text}{further_hint(how, settings)}"
    if settings.steps_by != "optimizer":
        return f"{how}: no step was seen by --steps-by {settings.steps_by}; see docs/attach.md for what ends a step"
    passes = counted(backwards, "backward pass")
    return (
        f"{how}: {passes} and no step of a torch optimizer; use --steps-by forward, or watch_steps"
    )


def further_hint(how: str, settings: AttachSettings) -> str:
    """What else to do about a script that has few steps, such as one that resumed from an earlier
    job's checkpoint.
    """
    from dpscope.profiling.store.folders import is_run_folder

    if how == STEP_RECORDED:
        return f"; {FOR_GRAPHS}"
    if how.startswith(RAISED) or settings.has_work_folder or not is_run_folder(settings.out):
        return ""
    return "; if it resumed from an earlier job's checkpoint, give each job its own folder: --work-folders DIR"


def no_group() -> str:
    """For several processes of a script that joined no process group."""
    count = os.environ["WORLD_SIZE"]
    text = f"nothing is measured: {count} processes run the script and it joined no process group, so each of them trains alone"
    if any(name in sys.modules for name in ("lightning.fabric", "lightning_fabric")):
        return (
            f"{text}; Lightning does not read the world size from torchrun: give its Trainer devices={count} and strategy='ddp', "
            f"or set LT_DEVICES={count} LT_NUM_NODES=1 LT_STRATEGY=ddp for Fabric"
        )
    return f"{text}; start one process (--devices 1), or let the script call init_process_group"


def started_alone(missing: int, processes: int, script: str) -> str:
    """For a job in which the script or its framework started other processes without dpscope."""
    return (
        f"nothing is measured: {missing} of {processes} processes run without dpscope, as the script or its framework started "
        f"them itself; let torchrun start all of them: dpscope attach --devices {processes} -- {script}"
    )


def print_note(text: str) -> None:
    """Print a line of dpscope's among the script's errors."""
    sys.stderr.write(f"dpscope: {text}\n")
