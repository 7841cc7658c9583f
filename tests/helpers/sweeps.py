"""Whole sweeps of tiny models with real torchrun jobs, for tests: started here or in a separate
process.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from dpscope.launch.jobs.job_outcome import read_progress
from dpscope.launch.jobs.job_queue import Outcome
from dpscope.launch.measuring.run import run_sweep
from dpscope.launch.planning.run_config import load_config
from dpscope.profiling.records.run import CellResult
from tests.helpers.light_torchrun import light_jobs
from tests.helpers.paths import ROOT

TINY: dict[str, object] = {
    "device": "cpu", "model": "tiny_models:tiny", "batch_size": "2", "steps": 4, "traced_steps": 1, "repeats": 1,
    "samples": 64, "timeout": 90,
}  # fmt: skip


def tiny_settings(**flags: object) -> dict[str, object]:
    """TINY with these; without a calibration and DDP on one device unless requested: both take
    seconds.
    """
    one_device = flags.get("strategy") == "single" or str(flags.get("devices")) == "1"
    with_ddp = "ddp" in str(flags.get("strategy", "ddp")) and str(
        flags.get("devices", "1,2")
    ).startswith("1,")
    unwanted: dict[str, object] = {} if one_device else {"calibrate": False}
    if with_ddp and not one_device:
        unwanted["ddp_alone"] = False
    return {**TINY, **unwanted, **flags}


def sweep(
    out: Path, fresh: bool = False, torchrun: bool = False, **flags: object
) -> Outcome[CellResult]:
    """A sweep in this process, whose jobs are started by light_torchrun.py, or by torchrun
    itself.
    """
    with contextlib.nullcontext() if torchrun else light_jobs():
        return run_sweep(
            load_config(None, tiny_settings(**flags)),
            out,
            fresh,
            Console(file=open(os.devnull, "w")),
        )


def processes_of(out: Path) -> list[int]:
    """Live processes that name the run's folder."""
    numbers = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [
        number
        for number in numbers
        if str(out).encode() in command_of(number) and number != os.getpid()
    ]


def command_of(process: int) -> bytes:
    """Its command line, empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def torchruns_of(out: Path) -> list[int]:
    """Those of a run's processes; ranks and their children may be forks with the same command."""
    same_command = [
        process
        for process in processes_of(out)
        if b"dpscope.launch.torchrun" in command_of(process)
    ]
    return [process for process in same_command if parent_of(process) not in same_command]


def parent_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def wait_until(holds: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "still not so"
        time.sleep(0.05)


def half_written(out: Path) -> list[Path]:
    return [
        path
        for path in out.rglob("*")
        if ".tmp-" in path.name or path.name in ("torchrun", "progress.txt")
    ]


def start_sweep(out: Path, **flags: object) -> subprocess.Popen[bytes]:
    """A sweep in a separate process: this module's `main`."""
    settings = tiny_settings(**{"data": "fake", "workers": 1, **flags})
    command = [sys.executable, "-m", __name__, json.dumps(settings), str(out)]
    environment = {**os.environ, "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{ROOT}"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def main() -> int:
    settings, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    return run_sweep(load_config(None, settings), out, False, Console()).exit_status


def in_pass(out: Path, cell: str, *states: str) -> Callable[[], bool]:
    """Whether a cell's first repeat is in one of these passes."""
    folder = out / "cells" / cell / "repeat0"
    return lambda: read_progress(folder) in states


if __name__ == "__main__":
    sys.exit(main())
