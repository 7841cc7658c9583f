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
STEP_RECORDED = "the script recorded a step into a CUDA graph, whose replays call no optimizer"
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
_TRACED_STEPS = 3

NO_OPTIMIZER = (
    f"{BACKWARDS_WITHOUT_STEP} backward passes and no step of a torch optimizer: the measurement starts with the first one; "
    "if the script uses another optimizer, stop it and attach with --steps-by forward"
)
# where the end of a script has one remedy
_REMEDIES = {
    STEP_RECORDED: "take the loop's batches from watch_steps and attach with --steps-by call",
    REPLACED: "set what it sets there before dpscope starts it, so that it need not start again",
}

StepsBy = Literal["optimizer", "forward", "call"]


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
    stop_after: bool = False  # end the script once it is measured
    record_collectives: bool = False  # write Flight Recorder's records while the script runs


def not_measured(
    how: str, steps: int, backwards: int, settings: AttachSettings, restarts: int = 0
) -> str:
    """For a script that ended (`how`) after `steps` steps, none of them timed, with so many
    backward passes before them.

    `restarts`: how often other optimizers took the place of the one whose steps were counted.
    """
    fewest = settings.warmup_steps + settings.traced_steps + TRACER_STEPS + SETTLING_STEPS
    if steps:
        seen = f"{counted(steps, 'step')} of {fewest + _FEWEST_TIMED} that are needed"
        advice = advice_for(how, steps, settings)
        if restarts and how not in _REMEDIES:
            advice = (
                "its optimizers take turns: give --steps-by forward, which counts the model's calls"
            )
    else:
        passes = f"{counted(backwards, 'backward pass')} and no step of a torch optimizer"
        seen = passes if backwards else "no training step was seen"
        advice = _REMEDIES.get(how, "if it trains, use --steps-by forward, or watch_steps")
    if how.startswith(RAISED):
        advice = "see its error"
    return f"{how}: nothing was measured: {seen}; {advice}"


def advice_for(how: str, steps: int, settings: AttachSettings, counters: bool = False) -> str:
    """How to measure a script completely that ended (`how`) after so many steps.

    `counters`: DDP's counters are read in steps after the timed ones.
    """
    options = _fitting_options(steps, settings, counters)
    longer = "let the script train longer"
    fewer = longer if options is None else f"attach with {options}, or {longer}"
    resumed = "if it resumed from a checkpoint, give each job its own folder: --work-folders DIR"
    return _REMEDIES.get(how, f"{fewer}; {resumed}")


def _fitting_options(steps: int, settings: AttachSettings, counters: bool) -> str | None:
    """The options with which a script of so many steps is measured; None if there are too few."""
    as_given = settings.warmup_steps, settings.traced_steps
    for warmup, traced in (as_given, (5, settings.traced_steps), (5, 1), (2, 1)):
        tracing = traced + TRACER_STEPS
        timed = steps - warmup - tracing - SETTLING_STEPS
        if counters:
            timed -= tracing + 1
        if timed >= _FEWEST_TIMED:
            fewer = f" --traced-steps {traced}" if traced != _TRACED_STEPS else ""
            return f"--warmup {warmup} --steps {min(timed, settings.steps)}{fewer}"
    return None


def no_group() -> str:
    """For several processes of a script that joined no process group."""
    return (
        f"nothing is measured: {os.environ['WORLD_SIZE']} processes run the script and it joined no process group, so each of "
        "them trains alone; start one process (--devices 1), or let the script call init_process_group (Lightning: "
        "strategy='ddp' and devices, see docs/attach.md)"
    )


def started_alone(missing: int, processes: int, script: str) -> str:
    """For a job in which the script or its framework started other processes without dpscope."""
    return (
        f"nothing is measured: {missing} of {processes} processes run without dpscope, as the script or its framework started "
        f"them itself; let torchrun start all of them: dpscope attach --devices {processes} -- {script}"
    )


def print_note(text: str) -> None:
    """Print a line of dpscope's among the script's errors."""
    sys.stderr.write(f"dpscope: {text}\n")
