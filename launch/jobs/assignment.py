"""What a worker process is to do: the only argument of `dpscope.launch.worker`, as JSON. Imports no
torch.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from dpscope.launch.jobs.devices import DeviceType
from dpscope.profiling.records.quantities import Count, Positive, Stamp
from dpscope.profiling.store.errors import DpscopeError

WORKER_MODULE = "dpscope.launch.worker"
_WORKER_PATH = Path(__file__).parents[1] / "worker.py"


class Assignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process's part of a job. Everything else is in the files of the folder `out`."""

    task: Literal["measure", "train", "equal", "calibrate"]
    out: str  # the run folder; of `calibrate`, the job's own
    cell: str = ""  # its name
    repeat: Count = 0  # of a measured cell
    seed: Stamp = 0  # of a training
    # Of a run that may not have begun: its options as on the command line, its file of settings,
    # and the nodes that it may span.
    options: Mapping[str, Any] | None = None
    config: str | None = None
    nodes: Positive = 1

    def program(self, kind: DeviceType) -> tuple[str, ...]:
        """What torchrun starts in each process, with the options that it takes.

        Processes on the CPU are forks of torchrun's, which has imported torch for all of them: that
        takes seconds. A GPU's driver does not support forks.
        """
        argument = msgspec.json.encode(self, enc_hook=str).decode()
        if kind == "cpu":
            return "--start-method=fork", "--run-path", str(_WORKER_PATH), argument
        return "-m", WORKER_MODULE, argument

    @property
    def folder(self) -> Path:
        return Path(self.out)


def read_assignment(arguments: Sequence[str]) -> Assignment:
    """The assignment in a worker's arguments; raises DpscopeError for anything else."""
    try:
        (text,) = arguments
        assignment = msgspec.json.decode(text, type=Assignment)
    except (ValueError, msgspec.MsgspecError) as error:
        raise DpscopeError(
            f"{' '.join(arguments)}: {error}; a worker takes one argument, as `dpscope run --dry-run` prints it"
        ) from error
    return assignment
