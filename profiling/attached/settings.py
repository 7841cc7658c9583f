"""What `dpscope attach` measures in a script, and messages about scripts that are not measured.
Imports no torch.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.settings import AMOUNT, Config, at_least, setting
from dpscope.profiling.store.files import write_text

RAISED = "the script raised"  # start of the description of a script's end by an exception
STEP_RECORDED = "the script recorded a step into a CUDA graph, whose replays call no optimizer"
# traced in addition to the whole ones: two under a tracer that discards, and one before them
TRACER_STEPS = 3
# after a trace: in the first, processes wait for those that wrote their traces more slowly
SETTLING_STEPS = 2
_FEWEST_TIMED = 5  # fewer timed steps give no interval
_COUNTED_STEPS = 11  # warm-up on GPUs: DDP reads its counters in the first 11 steps
_FEWEST_WARMUP = 2
_FEWEST_TRACED = 1
_SHORTER = f"--warmup {_FEWEST_WARMUP} --traced-steps {_FEWEST_TRACED}"
_SEEN_IN_PART = (
    "if its optimizers take turns, end its steps by watch_steps and --steps-by call; if it resumed from a checkpoint, give "
    "each job its own folder: --work-folders DIR"
)

LAST_NOTE_VARIABLE = "DPSCOPE_LAST_NOTE"
"""Names the file in which `dpscope attach` finds a job's last note."""

_WATCHED = "take the loop's batches from watch_steps and attach with --steps-by call"

StepsBy = Literal["optimizer", "call"]


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
        3, "whole traced steps", check=at_least(1)
    )  # one more is traced; 0: no trace, in benchmarks
    steps_by: StepsBy = setting("optimizer", "what ends a step", listed=True)
    batch_size: int | None = setting(
        None, "samples per device and step; default: as the model is called", check=at_least(1)
    )
    stop_after: bool = False  # end the script once it is measured
    record_collectives: bool = False  # write Flight Recorder's records while the script runs


def not_measured(how: str, steps: int, settings: AttachSettings) -> str:
    """For a script that ended (`how`) after `steps` steps, none of them timed."""
    needed = _needed_steps(settings.warmup_steps, settings.traced_steps)
    seen = f"{counted(steps, 'step')} of {needed} that are needed"
    if not steps:
        seen = "no torch optimizer stepped, except within a backward pass"
    if not steps and how.startswith(RAISED):
        seen = "no step was trained"
    return f"{how}: nothing was measured: {seen}; {advice_for(how, steps, settings)}"


def advice_for(how: str, steps: int, settings: AttachSettings) -> str:
    """How to measure a script completely that ended (`how`) after so many steps."""
    if how.startswith(RAISED):
        return "see its error"
    if how == STEP_RECORDED:
        return _WATCHED
    if not steps:
        return f"if it trains, {_WATCHED}"
    needed = _needed_steps(settings.warmup_steps, settings.traced_steps)
    longer = "let the script train longer"
    if steps < needed:
        on_gpus = _needed_steps(max(settings.warmup_steps, _COUNTED_STEPS), settings.traced_steps)
        longer = f"let the script train at least {needed} steps (on GPUs {on_gpus})"
    fewest = _needed_steps(_FEWEST_WARMUP, _FEWEST_TRACED)
    if fewest <= steps and fewest < needed:
        on_gpus = _needed_steps(_COUNTED_STEPS, _FEWEST_TRACED)
        longer = f"{longer}, or attach with {_SHORTER} ({fewest} steps, on GPUs {on_gpus})"
    return f"{longer}; {_SEEN_IN_PART}"


def _needed_steps(warmup: int, traced: int) -> int:
    """Steps of a script of which the fewest timed ones follow such a warm-up and trace."""
    return warmup + traced + TRACER_STEPS + SETTLING_STEPS + _FEWEST_TIMED


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
    """Print a line of dpscope's among the script's errors, and keep it for the end of the job."""
    sys.stderr.write(f"dpscope: {text}\n")
    kept = os.environ.get(LAST_NOTE_VARIABLE)
    if kept and os.environ.get("LOCAL_RANK", "0") == "0":
        # of a killed command the folder is gone, and the script goes on
        with suppress(OSError):
            write_text(Path(kept), text)
