"""What is to be measured of a script that dpscope does not own, and how one part of dpscope tells another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

RAISED = "the script raised"  # begins the description of how a script ended that raised an exception
TRACER_STEPS = 3  # traced in addition to the whole ones: two under a tracer that discards, and one before them
SETTLING_STEPS = 2  # after a trace: processes that wrote theirs at different speeds wait for each other in the first
_FEWEST_TIMED = 5  # steps without which there is no interval

StepsBy = Literal["optimizer", "forward", "call"]


@dataclass(frozen=True)
class AttachSettings:
    """The windows of a measurement, counted in steps of the script, and where it goes."""

    out: Path
    script: str  # the command that is told in the manifest
    code: Path | None = None  # the folder of its code, whose commit is told; None: none is
    warmup_steps: int = 10
    steps: int = 50  # timed
    traced_steps: int = 3  # whole ones; one more is traced. 0: none, in benchmarks
    steps_by: StepsBy = "optimizer"
    batch_size: int | None = None  # samples per device and step; None: as the model is called
    own_folder: bool = False  # the script has a working folder that no other job uses
    stop_after: bool = False  # end the script once it is measured

    @property
    def fewest_steps(self) -> int:
        """Steps that a script must have for a measurement: after its warm-up and its trace the fewest that are timed."""
        return self.warmup_steps + self.traced_steps + TRACER_STEPS + SETTLING_STEPS + _FEWEST_TIMED

    def shorter(self, steps: int, counted: bool = False) -> str | None:
        """The options with which a script of so many steps is measured whole; None where they are too few for any.

        `counted`: DDP's own counters are read in steps that follow the timed ones.
        """
        for warmup, traced in ((self.warmup_steps, self.traced_steps), (5, self.traced_steps), (5, 1), (2, 1)):
            counters = traced + TRACER_STEPS + 1 if counted else 0
            timed = steps - warmup - traced - TRACER_STEPS - SETTLING_STEPS - counters
            if timed >= _FEWEST_TIMED:
                fewer = f" --traced-steps {traced}" if traced != type(self).traced_steps else ""
                return f"--warmup {warmup} --steps {min(timed, self.steps)}{fewer}"
        return None
