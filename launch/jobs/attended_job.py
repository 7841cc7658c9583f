"""Waits for a torchrun job: shows its state, ends its processes, returns its outcome. Imports no torch."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.job_files import read_progress, remove_job_files
from dpscope.launch.jobs.job_outcome import JobOutcome, interrupted, job_outcome, judged_by_kernel, node_lost
from dpscope.launch.jobs.starting import THIS_HOST, JobStarter, RunningJob
from dpscope.launch.jobs.stop_request import StoppedError, StopRequest
from dpscope.launch.jobs.torchrun import JobWait
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder
from dpscope.profiling.store.layout import remove_temporaries


def attend_job(
    command: Sequence[str],
    folder: JobFolder,
    threads: int,
    timeout_s: float,
    title: str,
    stop: StopRequest,
    console: Console,
    starter: JobStarter = THIS_HOST,
) -> JobOutcome:
    """Run a job that is the only one on the terminal to its end, as `follow_job` does."""
    with console.status(Text(f"{title}: starting")) as status:
        job = starter.start(command, folder, threads, None)

        def show(state: str | None) -> None:
            status.update(Text(f"{title}: {state or 'starting'}"))

        return follow_job(job, timeout_s, show, stop, console)


def follow_job(
    job: RunningJob,
    timeout_s: float,
    on_state: Callable[[str | None], None],
    stop: StopRequest,
    console: Console,
    grace_s: float = 0.0,
) -> JobOutcome:
    """Wait for a job's end, its time limit or a request to stop; no process of it is left behind.

    `on_state` is told its state many times a second. A job that is stopped, or passes its time limit, has `grace_s` to end by
    itself, and so to save what it has. It is done when its result says so.
    """
    try:
        how, exit_status = job.wait(timeout_s, on_state, lambda: stop.requested)
        if how in ("stopped", "timed_out") and grace_s > 0:
            job.ask_to_end(grace_s)
    finally:
        warn_about_leftover_processes(job.end(), console)
    outcome = judged_by_kernel(_outcome(job, how, exit_status, timeout_s), job.memory_kills_before)
    remove_job_files(job.folder.path)
    remove_temporaries(job.folder.path)  # of processes that were killed while they wrote
    return outcome


def _outcome(job: RunningJob, how: JobWait, exit_status: int | None, timeout_s: float) -> JobOutcome:
    last_pass = read_progress(job.folder.path)
    if how == "stopped":
        return interrupted(job.folder, last_pass)
    if how == "lost":
        assert job.lost is not None
        return node_lost(job.folder, job.lost, last_pass)
    return job_outcome(job.folder, exit_status, timeout_s, last_pass, job.told_where)


def check_done(outcome: JobOutcome, what: str, stop: StopRequest, console: Console) -> None:
    """Raise DpscopeError, `what` failed and why, unless a job is done; the last lines of the ranks that failed are printed.

    StoppedError where a signal ended it, of which nothing is printed.
    """
    if outcome.status == "ok":
        return
    if outcome.status == "interrupted":
        raise StoppedError(f"{what}: interrupted", stop.exit_status)
    for line in outcome.log_tail:
        console.print(Text(line, style="dim"), soft_wrap=True)
    raise DpscopeError(f"{what}: {outcome.message}")


def warn_about_leftover_processes(processes: Sequence[int], console: Console) -> None:
    """Warn of processes that outlive even SIGKILL."""
    if processes:
        console.print(
            f"warning: processes {', '.join(str(process) for process in processes)} cannot be ended: they wait for a "
            "device or a file system; what runs beside them is slower. Restart the machine if they stay.",
            soft_wrap=True,
        )
