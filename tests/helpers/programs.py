"""A job whose command is a Python program rather than torchrun's."""

import sys
from dataclasses import dataclass

from dpscope.launch.jobs.torchrun import Job


@dataclass(frozen=True, kw_only=True)
class Program(Job):
    @property
    def command(self) -> tuple[str, ...]:
        return (sys.executable, *self.program)
