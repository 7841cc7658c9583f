"""Jobs of one command: started on this host or by launch/nodes on several, followed to their end,
one after another.

Imports no torch.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Generic, TypeVar

from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.job_outcome import JobOutcome, job_outcome, remove_job_files
from dpscope.launch.jobs.out_folder import locked
from dpscope.launch.jobs.stop_request import StoppedError, StopRequest
from dpscope.launch.jobs.torchrun import Job, TorchrunJob, end_leftovers
from dpscope.profiling.records.run import CellResult, Environment, Host
from dpscope.profiling.records.training import TrainResult
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RunFolder, remove_temporaries

# of outcomes that need no log to be understood
_STYLES = {"ok": "green", "skipped": "yellow", "interrupted": "yellow"}


class JobStarter:
    """Starts torchrun jobs, one at a time: on this host; `launch.nodes.team.Team` starts them on
    several nodes.
    """

    count = 1  # nodes that jobs may span

    @property
    def lost(self) -> str | None:
        """Which node is lost, so that no further job can be started; None while all nodes are
        there.
        """
        return None

    def start(self, job: Job) -> TorchrunJob:
        return TorchrunJob(job)

    def hosts(self, environment: Environment) -> tuple[Host, ...]:
        """The nodes if there are several; `environment` is this one's."""
        return ()

    def dismiss(self, exit_status: int, message: str = "") -> None:
        """Tell the other nodes that the command has ended, with its exit status."""


THIS_HOST = JobStarter()


def attend_job(
    job: Job,
    timeout_s: float,
    title: str,
    stop: StopRequest,
    console: Console,
    starter: JobStarter = THIS_HOST,
    watch: Callable[[str | None], str | None] = lambda state: state,
    left_s: float | None = None,
) -> JobOutcome:
    """Run a job to its end, its time limit or a request to stop, with a live line on a terminal;
    leaves none of its processes.

    `watch` gets the job's state, such as its pass, many times a second, and None before the first
    and after the end; it returns what the line shows. `left_s` is the estimated time until the end
    of this job and those after it. The job is done if its result has the status ok.
    """
    began_s = time.monotonic()
    # At the usual 12 refreshes a second the line would take a share of a core from what is
    # measured.
    with console.status(Text(f"{title}: starting"), refresh_per_second=2) as status:
        running = starter.start(job)

        def show(state: str | None) -> None:
            passed_s = time.monotonic() - began_s
            left = (
                ""
                if left_s is None
                else f"; about {duration_text(max(0.0, left_s - passed_s))} left"
            )
            status.update(
                Text(f"{title}: {watch(state) or 'starting'}, {duration_text(passed_s)}{left}")
            )

        try:
            how, exit_status = running.wait(timeout_s, show, lambda: stop.requested)
        finally:
            warn_about_leftover_processes(running.end(), console)
        before = running.memory_kills_before
        outcome = job_outcome(
            job.folder, how, exit_status, timeout_s, running.lost, running.rank_location, before
        )
        remove_job_files(job.folder.path)
        remove_temporaries(job.folder.path)  # of processes that were killed while they wrote
        watch(None)
        return outcome


class JobFailedError(DpscopeError):
    """A job failed without which its command has no result."""

    def __init__(self, message: str, outcome: JobOutcome) -> None:
        super().__init__(message)
        self.outcome = outcome


def check_done(outcome: JobOutcome, what: str, stop: StopRequest, console: Console) -> None:
    """Raise JobFailedError with `what` failed and the reason, unless a job is done; prints the last
    lines of the failed ranks.

    If a signal ended the job, raises StoppedError and prints nothing.
    """
    if outcome.status == "ok":
        return
    if outcome.status == "interrupted":
        raise StoppedError(f"{what}: interrupted", stop.exit_status)
    for line in outcome.log_tail:
        console.print(Text(line, style="dim"), soft_wrap=True)
    raise JobFailedError(f"{what}: {outcome.message}", outcome)


def warn_about_leftover_processes(processes: Sequence[int], console: Console) -> None:
    """Warn of processes that outlive even SIGKILL."""
    if processes:
        console.print(
            f"warning: processes {', '.join(str(process) for process in processes)} cannot be ended: they wait for a "
            "device or a file system and slow other processes down. Restart the machine if they stay.",
            soft_wrap=True,
        )


def duration_text(seconds: float) -> str:
    """Seconds as `42 s`, `3 min 05 s` or `3 h 26 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


JobT = TypeVar("JobT", bound=Job)
ResultT = TypeVar("ResultT", CellResult, TrainResult)
Watch = Callable[[str | None], str | None]
"""As `attend_job` takes it."""


@dataclass(frozen=True)
class Outcome(Generic[ResultT]):
    # of every planned job that was reached, those of earlier calls included
    results: tuple[ResultT, ...]
    stop: StopRequest
    lost: str | None = None  # which node was lost, so that the remaining jobs were not reached

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended them."""
        return self.stop.requested

    @property
    def ok(self) -> bool:
        """Whether every planned job has its result."""
        return (
            not self.interrupted
            and self.lost is None
            and all(result.status == "ok" for result in self.results)
        )

    @property
    def exit_status(self) -> int:
        """128 + the number of the signal that ended them, else 0 or 1."""
        return self.stop.exit_status if self.interrupted else int(not self.ok)


@contextmanager
def held(out: Path, console: Console) -> Iterator[None]:
    """Hold a run folder's lock, and first end processes that an earlier command left running there
    on this host.

    Raises DpscopeError if another dpscope writes there.
    """
    with locked(out, wait=False, note=lambda text: console.print(Text(text), soft_wrap=True)):
        warn_about_leftover_processes(end_leftovers(RunFolder(out)), console)
        yield


class JobQueue(Generic[JobT]):
    """The jobs of a command, run in order, each followed to its end."""

    def __init__(
        self,
        jobs: Sequence[JobT],
        console: Console,
        starter: JobStarter = THIS_HOST,
        watch: Callable[[JobT], Watch] = lambda job: lambda state: state,
        all_or_nothing: str = "",
    ) -> None:
        """`watch` follows a job while it runs. `all_or_nothing` is what a failed job means for the
        whole command, which it then ends, such as "nothing is compared".
        """
        self.jobs = jobs
        self.console = console
        self.starter = starter
        self.stop = StopRequest()
        # the jobs that ended well, and how long they ran
        self.took_s: list[tuple[JobT, float]] = []
        self._watch = watch
        self._all_or_nothing = all_or_nothing
        self._failed: list[tuple[JobT, JobOutcome]] = []

    def run_all(self) -> None:
        """Run the jobs of a command that needs all of them."""
        for _ in self.work_off():
            pass

    def work_off(self) -> Iterator[JobT]:
        """Run the jobs that are not finished; yields every job that is reached, in order, once it
        is over.

        Raises JobFailedError for a failure that ends the command, StoppedError if a signal does.
        """
        with self.stop.listening():
            for index, job in enumerate(self.jobs):
                if not job.finished:
                    self._attempt(index, job)
                yield job
                if self.stop.requested or self.starter.lost is not None:
                    break

    def _attempt(self, index: int, job: JobT) -> None:
        """Run a job; its start and its end are separate lines, on a terminal only where it does not
        end well.
        """
        job.prepare()
        title = f"[{index + 1}/{len(self.jobs)}] {job.name}"
        left_s = self.time_left_s(index)
        if not self.console.is_terminal:
            left = "" if left_s is None else f", about {duration_text(left_s)} left"
            self.console.print(Text(f"{title}: started{left}"))
        started_s = time.monotonic()
        outcome = self._run(job, title, left_s)
        took_s = time.monotonic() - started_s
        message = outcome.message
        if outcome.status == "ok":
            self.took_s.append((job, took_s))
        else:
            self._failed.append((job, outcome))
            message = job.store_failure(outcome, took_s)
            if self._all_or_nothing:
                what = f"{job.name} failed, {self._all_or_nothing}"
                check_done(outcome, what, self.stop, self.console)
        if outcome.status != "ok" or not self.console.is_terminal:
            mark = (outcome.status.replace("_", " "), _STYLES.get(outcome.status, "red"))
            text = f" in {duration_text(took_s)}" + (f": {message}" if message else "")
            self.console.print(Text.assemble(f"{title}: ", mark, text), soft_wrap=True)
        if outcome.status not in _STYLES:
            self.console.print(Text(f"  its log: {job.folder.log_path}"), soft_wrap=True)

    def _run(self, job: JobT, title: str, left_s: float | None) -> JobOutcome:
        if (reason := self._reason_to_skip(job)) is not None:
            return JobOutcome("skipped", reason)
        return attend_job(
            job,
            job.timeout_s,
            title,
            self.stop,
            self.console,
            self.starter,
            self._watch(job),
            left_s,
        )

    def _reason_to_skip(self, job: JobT) -> str | None:
        reasons = (job.fails_like(failed, outcome) for failed, outcome in self._failed)
        return next(filter(None, reasons), None)

    def time_left_s(self, index: int) -> float | None:
        """Estimated time of the job at `index` and those after it: the last time of one like it,
        else its estimate, scaled by the ratio so far, or the mean of all; None while unknown.

        In that ratio the estimate itself counts as one job: the first job alone, which reads torch
        from a cold disk, says little.
        """
        took_s = {job.alike: seconds for job, seconds in self.took_s}
        left = [
            job for job in self.jobs[index:] if not job.done and self._reason_to_skip(job) is None
        ]
        estimates_s = {job.alike: job.estimate_s for job in self.jobs if job.estimate_s is not None}
        if not estimates_s:
            mean_s = fmean(took_s.values()) if took_s else None
            return None if mean_s is None else sum(took_s.get(job.alike, mean_s) for job in left)
        usual_s = fmean(estimates_s.values())
        known_s = sum(estimates_s[name] for name in took_s)
        ratio = (sum(took_s.values()) + usual_s) / (known_s + usual_s)
        return sum(took_s.get(job.alike, estimates_s[job.alike] * ratio) for job in left)
