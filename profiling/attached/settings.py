"""What is to be measured of a script that dpscope does not own, and how one part of dpscope tells another."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

StepsBy = Literal["optimizer", "forward", "call"]


@dataclass(frozen=True)
class AttachSettings:
    """The windows of a measurement, counted in steps of the script, and where it goes."""

    out: Path
    script: str  # the command that is told in the manifest
    code: Path | None = None  # the folder of its code, whose commit is told; None: none is
    warmup_steps: int = 10
    steps: int = 50  # timed
    traced_steps: int = 3  # whole ones; one more is traced
    steps_by: StepsBy = "optimizer"
    batch_size: int | None = None  # samples per device and step; None: as the model is called
    stop_after: bool = False  # end the script once it is measured
