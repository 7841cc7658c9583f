"""A torchrun job that somebody waits for on a terminal: its state shown, its end seen to. Imports no torch."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.job_files import read_progress
from dpscope.launch.jobs.job_outcome import JobOutcome, interrupted, job_outcome
from dpscope.launch.jobs.stop_request import StoppedError, StopRequest
from dpscope.launch.jobs.torchrun import JobWait, TorchrunJob
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder

JobEnd = tuple[JobWait, int | None]
"""How waiting ended, and torchrun's exit status if it did."""


def attend_job(
    command: Sequence[str],
    folder: JobFolder,
    threads: int,
    timeout_s: float,
    title: str,
    stop: StopRequest,
    console: Console,
) -> JobEnd:
    """Run a job to its end, to its time limit or to a request to stop; no process of it is left behind."""
    with console.status(f"{title}: starting") as status:
        job = TorchrunJob(command, folder, threads)
        return follow_job(job, timeout_s, lambda state: status.update(f"{title}: {state or 'starting'}"), stop, console)


def follow_job(
    job: TorchrunJob,
    timeout_s: float,
    on_state: Callable[[str | None], None],
    stop: StopRequest,
    console: Console,
    grace_s: float = 0.0,
) -> JobEnd:
    """As `attend_job`, of a job that was started; `on_state` is told its state many times a second.

    A job that is stopped, or passes its time limit, has `grace_s` to end by itself, and so to save what it has.
    """
    try:
        how, exit_status = job.wait(timeout_s, on_state, lambda: stop.requested)
        if how != "exited" and grace_s > 0:
            job.ask_to_end(grace_s)
        return how, exit_status
    finally:
        warn_about_leftover_processes(job.end(), console)


def outcome_of(folder: JobFolder, end: JobEnd, timeout_s: float) -> JobOutcome:
    """How a job ended that is over, one that was stopped included."""
    how, exit_status = end
    last_pass = read_progress(folder.path)
    if how == "stopped":
        return interrupted(folder, last_pass)
    return job_outcome(folder, exit_status, timeout_s, last_pass)


def job_failure(
    folder: JobFolder, end: JobEnd, timeout_s: float, what: str, stop: StopRequest, console: Console
) -> DpscopeError:
    """`what` failed and why, in one line; the last lines of the ranks that failed are printed."""
    how, exit_status = end
    if how == "stopped":
        return StoppedError(f"{what}: interrupted", stop.exit_status)
    outcome = job_outcome(folder, exit_status, timeout_s, read_progress(folder.path))
    for line in outcome.log_tail:
        console.print(Text(line, style="dim"), soft_wrap=True)
    return DpscopeError(f"{what}: {outcome.message}")


def warn_about_leftover_processes(processes: Sequence[int], console: Console) -> None:
    """Warn of processes that outlive even SIGKILL."""
    if processes:
        console.print(
            f"warning: processes {', '.join(str(process) for process in processes)} cannot be ended: they wait for a "
            "device or a file system; what runs beside them is slower. Restart the machine if they stay.",
            soft_wrap=True,
        )
