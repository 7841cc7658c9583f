"""Where one check works: its folder, its devices, and how it runs dpscope's own commands. Imports no torch."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from dpscope.launch.jobs.attended_job import attend_job
from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import torchrun_prefix
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder

PREPARED_RUN = "single_and_ddp"  # the run of one check, which others read


@dataclass(frozen=True)
class Workplace:
    """`folder` is the check's own; `shared` holds those of all checks. On a CPU, for tests, devices are processes."""

    folder: Path
    kind: DeviceType = "cuda"
    gpus: int = 1

    @property
    def shared(self) -> Path:
        return self.folder.parent

    def dpscope(
        self, *arguments: object, variables: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command of dpscope's to its end; the check's time limit is its own."""
        return subprocess.run(
            self.command(*arguments),
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def command(self, *arguments: object) -> list[str]:
        """A command of dpscope's."""
        return [sys.executable, "-m", "dpscope.launch.cli", *map(str, arguments)]

    def analysis(self, *paths: Path) -> dict[str, Any]:
        """What `dpscope analyze` says of a run or of traces; raises DpscopeError in its words where it says nothing."""
        ended = self.dpscope("analyze", *paths, "--format", "json")
        if not ended.stdout.lstrip().startswith("{"):
            raise DpscopeError(f"dpscope analyze: {last_line(ended.stderr)}")
        content: dict[str, Any] = json.loads(ended.stdout)
        return content

    def torchrun(self, processes: int, module: str, *arguments: object, limit_s: float) -> JobOutcome:
        """A torchrun job of `processes` that run a module in this check's folder; its result is in `result.json`."""
        folder = JobFolder(self.folder)
        command = [*torchrun_prefix(processes, folder), "-m", module, str(self.folder), *map(str, arguments)]
        stop = StopRequest()
        with stop.listening():
            return attend_job(command, folder, 1, limit_s, module, stop, Console(file=sys.stderr))


def last_line(text: str) -> str:
    """The last line that says something."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
