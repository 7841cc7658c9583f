"""torchrun jobs of a command: started on this host or by launch/nodes on several, followed to their end. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.job_outcome import JobOutcome, job_outcome, remove_job_files
from dpscope.launch.jobs.stop_request import StoppedError, StopRequest
from dpscope.launch.jobs.torchrun import TorchrunJob
from dpscope.profiling.records.run import Environment, Host
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder, RunFolder, remove_temporaries


@dataclass(frozen=True)
class SeveralNodesJob:
    """A planned job over several nodes, as each of them derives it from the run folder."""

    title: str
    command: tuple[str, ...]  # of `torchrun_prefix`
    folder: JobFolder
    threads: int
    in_run: bool  # its leftover processes can be found by the run folder


class JobStarter:
    """Starts torchrun jobs, one at a time: on this host; `launch.nodes.team.Team` starts them on several nodes."""

    count = 1  # nodes that jobs may span

    @property
    def lost(self) -> str | None:
        """Which node is lost, so that no further job can be started; None while all nodes are there."""
        return None

    def start(self, command: Sequence[str], folder: JobFolder, threads: int, run: RunFolder | None) -> TorchrunJob:
        """Start a command of `torchrun_prefix`; with `run`, its leftover processes can be found later."""
        return TorchrunJob(command, folder, threads, run)

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        """The nodes if there are several; `environment` is this one's."""
        return ()

    def clear(self) -> None:
        """Have the other nodes end processes that earlier commands left running in the run folder, whose lock is held."""

    def check_gpus(self, per_node: int) -> None:
        """Raise DpscopeError if another node has fewer than `per_node` GPUs, the number that a job needs there."""

    def dismiss(self, exit_status: int, message: str = "") -> None:
        """Tell the other nodes that the command has ended, with its exit status."""


THIS_HOST = JobStarter()


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
    job: TorchrunJob,
    timeout_s: float,
    on_state: Callable[[str | None], None],
    stop: StopRequest,
    console: Console,
    grace_s: float = 0.0,
) -> JobOutcome:
    """Wait for a job's end, its time limit or a request to stop; leaves none of its processes behind.

    `on_state` gets the job's state many times a second. A job that is stopped or passes its time limit has `grace_s` to save
    what it has and to end by itself. It is done if its result has the status ok.
    """
    try:
        how, exit_status = job.wait(timeout_s, on_state, lambda: stop.requested)
        if how in ("stopped", "timed_out") and grace_s > 0:
            job.ask_to_end(grace_s)
    finally:
        warn_about_leftover_processes(job.end(), console)
    outcome = job_outcome(job.folder, how, exit_status, timeout_s, job.lost, job.rank_location, job.memory_kills_before)
    remove_job_files(job.folder.path)
    remove_temporaries(job.folder.path)  # of processes that were killed while they wrote
    return outcome


def check_done(outcome: JobOutcome, what: str, stop: StopRequest, console: Console) -> None:
    """Raise DpscopeError with `what` failed and the reason, unless a job is done; prints the last lines of the failed ranks.

    If a signal ended the job, raises StoppedError and prints nothing.
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
            "device or a file system and slow other processes down. Restart the machine if they stay.",
            soft_wrap=True,
        )
