"""Which of many trace files one task of a job reads, so that together they read every file once."""

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
)  # what srun, Open MPI's mpirun, and MPICH's and Intel's tell each of their tasks


@dataclass(frozen=True)
class Share:
    """The `index`-th of `of` shares, from 0 on."""

    index: int
    of: int

    @property
    def name(self) -> str:
        """As files bear it: 3of16."""
        return f"{self.index + 1}of{self.of}"

    def among(self, items: Sequence[_Item]) -> list[_Item]:
        """Every `of`-th item; the shares of one sequence hold each of its items once."""
        return list(items[self.index :: self.of])


def read_share(text: str, environment: Mapping[str, str] = os.environ) -> Share:
    """The share that `--share` states: K/N, from 1/N to N/N, or auto, by what the launcher told this task.

    Raises DpscopeError for another text, and for auto where no launcher told.
    """
    if text == "auto":
        return _told_share(environment)
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise DpscopeError(f"--share {text}: give auto, or K/N with K from 1 to N, such as 3/16")
    return Share(int(found[1]) - 1, int(found[2]))


def _told_share(environment: Mapping[str, str]) -> Share:
    for index_name, count_name in _TASKS:
        index, count = environment.get(index_name, ""), environment.get(count_name, "")
        if index.isdecimal() and count.isdecimal() and int(index) < int(count):
            return Share(int(index), int(count))
    named = ", ".join(" and ".join(pair) for pair in _TASKS)
    raise DpscopeError(f"--share auto: none of {named} is set; start dpscope with srun or mpirun, or give --share K/N")
