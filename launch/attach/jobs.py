"""`dpscope attach`: a script measured on several device counts, one torchrun job after another. Imports no torch."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from dpscope.launch.jobs.devices import Devices
from dpscope.launch.jobs.parent_death import JOB_TOKEN_VARIABLE, dying_with_process
from dpscope.launch.jobs.stop_request import StoppedError
from dpscope.launch.jobs.torchrun import end_processes
from dpscope.profiling.machine.environment import usable_cores
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder, is_run_folder


def check_counts(counts: Sequence[int], devices: Devices) -> None:
    """Raise DpscopeError for device counts that this machine does not have: times on them would be no measurement."""
    if min(counts) < 1:
        raise DpscopeError(f"--devices {min(counts)}: every device count must be 1 or more")
    most = max(counts)
    if devices.count is not None and most > devices.count:
        raise DpscopeError(
            f"--devices {most}: this machine has {counted(devices.count, 'GPU')} that torch can use; "
            f"ask for {devices.count} at most"
        )
    if devices.count is None and most > usable_cores():
        raise DpscopeError(
            f"--devices {most}: this machine has no GPU and {counted(usable_cores(), 'core')}, one for each process; ask for "
            f"{usable_cores()} at most"
        )


def default_counts(devices: Devices) -> tuple[int, ...]:
    """1, 2, 4 and so on up to all devices; on a CPU two at most."""
    most = min(2, usable_cores()) if devices.count is None else devices.count
    return tuple(sorted({2**exponent for exponent in range(most.bit_length())} | {most}))


def attach_command(count: int, out: Path, options: Sequence[str], script: Sequence[str]) -> list[str]:
    """The torchrun command of one device count; it can be given by hand."""
    torchrun = (sys.executable, "-m", "dpscope.launch.attach.torchrun", "--standalone", f"--nproc-per-node={count}")
    return [*torchrun, "-m", "dpscope.launch.attach", "--out", str(out), *options, *script]


def job_environment(counts: Sequence[int]) -> dict[str, str]:
    """This process's, with one thread for each process, as torchrun sets it where there are several, but for every count.

    Cells with different threads would not compare. Who says OMP_NUM_THREADS is heeded.
    """
    return {**({"OMP_NUM_THREADS": "1"} if max(counts) > 1 else {}), **os.environ}


def repeats_there(out: Path) -> int:
    """How many repeats a run folder holds, of all its cells."""
    run = RunFolder(out)
    if not is_run_folder(out):
        return 0
    return sum(1 for planned in run.manifest().plan for _ in run.done_repeats(planned.cell))


def run_jobs(commands: Sequence[Sequence[str]], environment: Mapping[str, str] | None = None) -> int:
    """Run the commands one after another with this process's own input and output; the first exit status that is not 0.

    A signal that asks this process to end is passed on; when the job has ended it raises StoppedError. A job that a signal ended
    leaves no process behind.
    """
    for command in commands:
        token = uuid.uuid4().hex
        job_variables = {**(os.environ if environment is None else environment), JOB_TOKEN_VARIABLE: token}
        job = subprocess.Popen(dying_with_process(os.getpid(), command), env=job_variables)
        with _passed_on(job) as received:
            status = job.wait()
        if received or status < 0:
            end_processes(f"{JOB_TOKEN_VARIABLE}={token}")
        if received:
            name = signal.Signals(received[0]).name
            raise StoppedError(
                f"stopped by {name}; `dpscope analyze` reports what was measured before", 128 + received[0]
            )
        if status:
            return status if status > 0 else 128 - status
    return 0


@contextmanager
def _passed_on(job: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """Pass the signals that end a process on to the job; yields those that have arrived."""
    received: list[int] = []

    def send(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if number != signal.SIGINT or not _in_foreground():
            job.send_signal(number)

    before = {one: signal.signal(one, send) for one in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether this process and its job are a terminal's foreground, all of which Ctrl-C signals."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # no terminal
        return False
