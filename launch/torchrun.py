"""One torchrun job: its command, its log, its time limit, its end. Leaves no process behind. Imports no torch."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from dpscope.launch.job_files import JOB_TOKEN_VARIABLE, STARTED_AT_VARIABLE, read_progress
from dpscope.launch.parent_death import die_with_parent
from dpscope.profiling.run_store import RepeatFolder, RunFolder
from dpscope.profiling.run_types import Cell

JobWait = Literal["exited", "timed_out", "stopped"]

_POLL_S = 0.1
_GRACE_S = 3.0  # between SIGTERM and SIGKILL


def torchrun_command(run: Path, cell: Cell, repeat: int) -> list[str]:
    """The exact command of one repeat of a cell; it can be given by hand once the run's manifest is there."""
    folder = RunFolder(run).repeat(cell, repeat)
    worker = ("-m", "dpscope.launch.worker", "--out", str(run), "--cell", cell.name, "--repeat", str(repeat))
    return [*torchrun_prefix(cell.processes, folder), *worker]


def torchrun_prefix(processes: int, folder: RepeatFolder) -> list[str]:
    """torchrun on this host with dpscope's settings; what each process is to run follows it."""
    return [
        sys.executable,
        *("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"),
        *("--max-restarts=0", "--role=rank", "--tee=3"),
        f"--log-dir={_torchrun_folder(folder)}",
    ]


def _torchrun_folder(folder: RepeatFolder) -> Path:
    return folder.path / "torchrun"


class TorchrunJob:
    """A running torchrun with all its processes, found by a token in their environment.

    torchrun puts every worker into a session of its own, and workers have children (data loaders): neither a
    process group nor the tree under a dead torchrun would reach them all.
    """

    def __init__(self, command: Sequence[str], folder: RepeatFolder, threads: int) -> None:
        self._folder = folder
        self._token = f"{JOB_TOKEN_VARIABLE}={uuid.uuid4().hex}"
        name, _, value = self._token.partition("=")
        environment = {
            "OMP_NUM_THREADS": str(threads),
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML's order, so that states belong to their devices
            **os.environ,
            name: value,
            STARTED_AT_VARIABLE: str(time.time()),
        }
        folder.path.mkdir(parents=True, exist_ok=True)
        self._log = open(folder.log_path, "wb")  # noqa: SIM115 (closed by end)
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is the sweep's to handle
            preexec_fn=die_with_parent,
        )

    def wait(
        self,
        timeout_s: float,
        on_progress: Callable[[str | None], None],
        stop_requested: Callable[[], bool],
    ) -> tuple[JobWait, int | None]:
        """How waiting ended, and torchrun's exit status if it did; `on_progress` is told the job's pass."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if stop_requested():
                return "stopped", None
            on_progress(read_progress(self._folder.path))
            try:
                return "exited", self._process.wait(timeout=_POLL_S)
            except subprocess.TimeoutExpired:
                continue
        return "timed_out", None

    def end(self) -> None:
        """End every process of the job that is still there, and remove torchrun's own files."""
        deadline = time.monotonic() + _GRACE_S
        _signal_all(self._token, signal.SIGTERM)
        while _signal_all(self._token, None) and time.monotonic() < deadline:
            self._process.poll()
            time.sleep(_POLL_S)
        while _signal_all(self._token, signal.SIGKILL):
            self._process.poll()
            time.sleep(_POLL_S)
        self._process.wait()
        self._log.close()
        shutil.rmtree(_torchrun_folder(self._folder), ignore_errors=True)


def _signal_all(token: str, number: signal.Signals | None) -> int:
    """Send a signal (None: nothing) to all processes with the token; returns how many there are."""
    found = processes_with(token)
    for process_id in found if number is not None else ():
        assert number is not None
        try:
            os.kill(process_id, number)
        except ProcessLookupError:
            continue
    return len(found)


def processes_with(token: str) -> list[int]:
    """Ids of the live processes that have `token` (NAME=value) in their environment, this one excepted."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
        except OSError:  # gone meanwhile, or another user's
            continue
        if token.encode() in environment.split(b"\0") and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found
