"""The jobs of `dpscope attach`: a script on several device counts, one torchrun job after another.
Imports no torch.
"""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from dpscope.launch.jobs.devices import Devices, doubling
from dpscope.launch.jobs.job_queue import duration_text
from dpscope.launch.jobs.parent_death import JOB_TOKEN_VARIABLE, dying_with_process
from dpscope.launch.jobs.stop_request import StoppedError, StopRequest
from dpscope.launch.jobs.torchrun import TORCHRUN_MODULE, end_processes
from dpscope.profiling.attached.settings import LAST_NOTE_VARIABLE
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.records.attach_codes import WITHOUT_TORCHRUN, AttachCode
from dpscope.profiling.records.finding import counted
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder, is_run_folder

_POLL_S = 0.1


def check_counts(counts: Sequence[int], devices: Devices) -> None:
    """Raise DpscopeError for more devices than this machine has."""
    if min(counts) < 1:
        raise DpscopeError(f"--devices {min(counts)}: every device count must be 1 or more")
    most = max(counts)
    devices.check_present(most, f"--devices {most}")
    cores = usable_cores()
    if devices.count is None and most > cores:
        raise DpscopeError(
            f"--devices {most}: this machine has no GPU and {counted(cores, 'core')}, one for each process; give "
            f"{cores} at most"
        )


def default_counts(devices: Devices) -> tuple[int, ...]:
    """1, 2, 4, ... and all devices; on the CPU two at most."""
    return doubling(min(2, usable_cores()) if devices.count is None else devices.count)


def repeats_there(out: Path) -> int:
    """Number of measured repeats in a run folder, over all cells."""
    if not is_run_folder(out):
        return 0
    run = RunFolder(out)
    return sum(len(run.done_repeats(planned.cell)) for planned in run.manifest().plan)


def run_job(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command with this process's input and output; returns its exit status, above 128 for a
    signal that ended it.

    Passes signals that end this process on to the job, and raises StoppedError when the job has
    ended. A job that is ended by a signal leaves no process behind.
    """
    token = uuid.uuid4().hex
    stop = StopRequest()
    with stop.listening():
        # the kernel ends it with this process
        job = subprocess.Popen(
            dying_with_process(os.getpid(), command), env={**environment, JOB_TOKEN_VARIABLE: token}
        )
        while job.poll() is None and not stop.requested:
            time.sleep(_POLL_S)
        # Ctrl-C in a terminal reaches the job too, and a second signal would cut its own end short
        number = stop.signal_number
        if number is not None and not (number == signal.SIGINT and _in_foreground()):
            job.send_signal(number)
        status = job.wait()
    if number is not None or status < 0:
        end_processes(f"{JOB_TOKEN_VARIABLE}={token}")
    if number is not None:
        name = signal.Signals(number).name
        raise StoppedError(
            f"stopped by {name}; `dpscope analyze` reports earlier measurements", stop.exit_status
        )
    return status if status >= 0 else 128 - status


def _in_foreground() -> bool:
    """Whether this process and its job are in a terminal's foreground: then Ctrl-C signals both."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # no terminal
        return False


SINGLE = "single"


@dataclass(frozen=True)
class AttachedJob:
    """A script on some devices; `devices` None: on one device without torchrun."""

    devices: int | None
    command: tuple[str, ...]  # which also works by hand
    environment: Mapping[str, str] = field(repr=False, compare=False)  # of its processes

    @property
    def label(self) -> str:
        return WITHOUT_TORCHRUN if self.devices is None else counted(self.devices, "device")


def plan_jobs(
    counts: Sequence[int | None],
    repeats: int,
    out: Path,
    options: Sequence[str],
    script: Sequence[str],
    devices: Devices,
    work_folders: Path | None = None,
    threads: int | None = None,
) -> list[AttachedJob]:
    """The jobs in order: each count once, then the next repeat. With `work_folders` each job has an
    empty folder there.

    `threads` of each process, unless the environment sets them; None: as torchrun chooses.
    """
    # torchrun limits threads for several processes only, and cells with different threads could not
    # be compared.
    if threads is None and _any_several(counts):
        threads = 1
    several = dict(os.environ)
    if threads is not None:
        several.setdefault("OMP_NUM_THREADS", str(threads))
    single = dict(several)
    if devices.count is not None:  # the first GPU alone: frameworks would use all visible ones
        visible = several.get("CUDA_VISIBLE_DEVICES", "0")
        single["CUDA_VISIBLE_DEVICES"] = visible.partition(",")[0]
    jobs = []
    for count in [*counts] * repeats:
        name = SINGLE if count is None else f"d{count}"
        command = [sys.executable]
        if count is not None:
            command += ["-m", TORCHRUN_MODULE, "--nnodes=1", f"--nproc-per-node={count}"]
        command += ["-m", "dpscope.launch.attach", "--out", str(out), *options]
        if work_folders is not None:
            command += ["--work-folder", str(_free_folder(work_folders, name))]
        environment = single if count is None else several
        jobs.append(AttachedJob(count, (*command, *script), environment))
    return jobs


def _any_several(counts: Sequence[int | None]) -> bool:
    """Whether one of the device counts is above 1."""
    return any((count or 1) > 1 for count in counts)


def _free_folder(folders: Path, name: str) -> Path:
    """A new folder with this name and the next free number."""
    number = 0
    while (folder := folders.absolute() / f"{name}-{number}").exists():
        number += 1
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise DpscopeError(
            f"--work-folders {folders}: cannot make {folder.name} there: {error.strerror}"
        ) from error
    return folder


@dataclass(frozen=True)
class JobEnd:
    """How a job has ended."""

    job: AttachedJob
    status: int
    is_measured: bool
    last_note: str = ""  # of dpscope in its first process

    @property
    def has_failed(self) -> bool:
        return self.status != 0 or not self.is_measured

    @property
    def text(self) -> str:
        """Whether it was measured, and how the script ended."""
        if self.is_measured:
            return f"measured, ended with status {self.status}"
        return f"not measured, ended with status {self.status}"


def run_jobs(jobs: Sequence[AttachedJob], out: Path, note: Callable[[str], None]) -> list[JobEnd]:
    """Run these jobs, up to the first whose status is not 0; `note` gets a line where each begins
    and ends.
    """
    ends: list[JobEnd] = []
    for number, job in enumerate(jobs, 1):
        title = f"[{number}/{len(jobs)}] {job.label}"
        note(f"{title}: started")
        began_s = time.monotonic()
        end = _run(job, out)
        took_s = time.monotonic() - began_s
        note(f"{title}: {end.text} after {duration_text(took_s)}")
        ends.append(end)
        if end.status:
            break
    return ends


def _run(job: AttachedJob, out: Path) -> JobEnd:
    """Run a job, whose processes write its repeat themselves."""
    before = repeats_there(out)
    last_note = ""
    with tempfile.TemporaryDirectory(prefix="dpscope-") as folder:
        kept = Path(folder, "last_note")
        environment = dict(job.environment)
        environment[LAST_NOTE_VARIABLE] = str(kept)
        status = run_job(job.command, environment)
        if kept.exists():
            last_note = kept.read_text()
    after = repeats_there(out)
    return JobEnd(job, status, after > before, last_note)


def run_with_baseline(
    counts: Sequence[int | None],
    plan: Callable[..., list[AttachedJob]],
    out: Path,
    note: Callable[[str], None],
) -> list[JobEnd]:
    """Run the jobs that `plan` gives for these counts, then the script without torchrun if one
    device lacks a baseline.
    """
    ends = run_jobs(plan(counts), out, note)
    if any(end.has_failed for end in ends) or not lacks_baseline(out, counts):
        return ends
    note("The script runs once more on one device, without torchrun: the baseline of efficiency.")
    baseline = run_jobs(plan([None], threads=1), out, note)
    if any(end.has_failed for end in baseline):
        note(
            "It was not measured without torchrun: there is no efficiency, and one device under its wrapper is shown."
        )
    return [*ends, *baseline]


def lacks_baseline(out: Path, counts: Sequence[int | None]) -> bool:
    """Whether one device was to be compared with several, and only one under a wrapper was
    measured, as under torchrun.
    """
    if 1 not in counts or not _any_several(counts) or not is_run_folder(out):
        return False
    run = RunFolder(out)
    planned = [planned.cell for planned in run.manifest().plan]
    measured = [cell for cell in planned if run.done_repeats(cell)]
    # "single" cells are a baseline, and DDP on one device is not
    has_several = any(cell.devices > 1 for cell in measured)
    has_baseline = any(cell.traits.baseline for cell in measured)
    return has_several and not has_baseline


def record_jobs(out: Path, ends: Sequence[JobEnd]) -> None:
    """Update the run's manifest: add jobs that were not measured; remove those now measured."""
    if not is_run_folder(out):
        return
    run = RunFolder(out)
    code = AttachCode.JOB_NOT_MEASURED
    manifest = run.manifest()
    # A finding about a job stays until the job is run again.
    ended = {end.job.label for end in ends}
    measured = {end.job.label for end in ends if end.is_measured}
    findings = [
        finding
        for finding in manifest.findings
        if finding.code != code.code or finding.about not in ended
    ]
    for end in ends:
        if not end.has_failed or end.job.label in measured:
            continue  # another repeat of it may be there
        cause = "fix the cause"
        if end.job.devices is None:
            cause = "let the script train without torchrun (no init_process_group where WORLD_SIZE is not set)"
        again = f"dpscope attach --devices {end.job.devices or SINGLE} --out {shlex.quote(str(out))} -- {manifest.script}"
        seen = f"the script ended with status {end.status} and was not measured; see its output for the reason"
        findings.append(code.finding(seen, f"{cause}, then: {again}", about=end.job.label))
    if tuple(findings) != manifest.findings:
        write_json(run.manifest_path, msgspec.structs.replace(manifest, findings=tuple(findings)))
