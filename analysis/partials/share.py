"""Shares of the traces in a folder that several tasks of a job reduce together."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dpscope.profiling.store.errors import DpscopeError

_Item = TypeVar("_Item")
_TASKS = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)  # set for each task by srun, Open MPI's mpirun, and MPICH's and Intel's mpirun


@dataclass(frozen=True)
class Share:
    """Share `index` (from 0) of `of`."""

    index: int
    of: int

    @property
    def name(self) -> str:
        """The share in file names, such as 3of16."""
        return f"{self.index + 1}of{self.of}"

    def among(self, items: Sequence[_Item]) -> list[_Item]:
        """Every `of`-th item; the shares of one sequence hold each of its items once."""
        return list(items[self.index :: self.of])


def read_share(text: str, environment: Mapping[str, str] = os.environ) -> Share:
    """Parse `--share`: K/N, or auto, by the launcher's environment variables. Raises DpscopeError
    where neither is there.
    """
    if text == "auto":
        for index_name, count_name in _TASKS:
            index = environment.get(index_name, "")
            count = environment.get(count_name, "")
            if index.isdecimal() and count.isdecimal() and int(index) < int(count):
                return Share(int(index), int(count))
        named = ", ".join(" and ".join(pair) for pair in _TASKS)
        raise DpscopeError(
            f"--share auto: none of {named} is set; start dpscope with srun or mpirun, or use --share K/N"
        )
    # int() refuses thousands of digits with an error of its own
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise DpscopeError(f"--share {text}: use auto, or K/N with K from 1 to N, such as 3/16")
    return Share(int(found[1]) - 1, int(found[2]))
