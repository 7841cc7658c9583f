"""Runs the jobs of one command in order: keeps results, records failures, ends on a signal. Imports no torch."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.attended_job import follow_job, warn_about_leftover_processes
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.out_folder import locked
from dpscope.launch.jobs.progress import SweepProgress
from dpscope.launch.jobs.starting import THIS_HOST, JobStarter
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import end_leftovers
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.store.folders import JobFolder, RunFolder


class QueuedJob(Protocol):
    """One torchrun job that is planned."""

    @property
    def name(self) -> str:
        """What it is called on the terminal."""

    @property
    def folder(self) -> JobFolder:
        """Where it writes."""

    @property
    def command(self) -> tuple[str, ...]:
        """What starts it."""


class StoredResult(Protocol):
    """What is stored of a job that ended."""

    @property
    def status(self) -> CellStatus:
        """How it ended."""

    @property
    def message(self) -> str:
        """Why, where it is not ok."""


JobT = TypeVar("JobT", bound=QueuedJob)
ResultT = TypeVar("ResultT", bound=StoredResult)
ManifestT = TypeVar("ManifestT")


@dataclass(frozen=True)
class Outcome(Generic[ManifestT, ResultT]):
    """How the jobs of a command ended."""

    manifest: ManifestT
    results: tuple[ResultT, ...]  # of every planned job that was reached, those of earlier calls included
    stop: StopRequest
    lost: str | None = None  # which node is, so that jobs are left that were not reached

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended them."""
        return self.stop.requested

    @property
    def ok(self) -> bool:
        """Whether every planned job has its result."""
        return not self.interrupted and self.lost is None and all(result.status == "ok" for result in self.results)

    @property
    def exit_status(self) -> int:
        """128 + the number of the signal that ended them, else 0 or 1."""
        return self.stop.exit_status if self.interrupted else int(not self.ok)


@contextmanager
def held(out: Path, console: Console, starter: JobStarter = THIS_HOST) -> Iterator[None]:
    """Hold a run folder's lock; what an earlier command left running there is ended first, on all nodes.

    Raises DpscopeError when another dpscope writes there.
    """
    with locked(out, wait=False, note=lambda text: console.print(Text(text), soft_wrap=True)):
        warn_about_leftover_processes(end_leftovers(RunFolder(out)), console)
        starter.clear()
        yield


class JobQueue(ABC, Generic[JobT, ResultT]):
    """Runs jobs in order. What a job is, and what is stored of it, its subclass says."""

    def __init__(
        self,
        run: RunFolder,
        jobs: Sequence[JobT],
        threads: int,
        timeout_s: float,
        console: Console,
        grace_s: float = 0.0,
        starter: JobStarter = THIS_HOST,
    ) -> None:
        """`timeout_s` is each job's; one that is stopped has `grace_s` to save what it has."""
        self.starter = starter
        self.jobs = jobs
        self.console = console
        self.progress = SweepProgress(console, len(jobs))
        self.stop = StopRequest()
        self._run = run
        self._threads = threads
        self._timeout_s = timeout_s
        self._grace_s = grace_s

    @abstractmethod
    def finished(self, job: JobT) -> ResultT | None:
        """The stored result of a job that is not to be run again."""

    @abstractmethod
    def prepare(self, job: JobT) -> None:
        """Clear the job's folder of what an earlier attempt left."""

    @abstractmethod
    def store(self, job: JobT, outcome: JobOutcome, took_s: float) -> ResultT:
        """The result the job left, or else one made from its outcome and stored."""

    @abstractmethod
    def time_left_s(self, index: int) -> float | None:
        """Of the job at `index` and those after it; None while nothing is known."""

    def reason_to_skip(self, job: JobT) -> str | None:
        """Why a job would fail as an earlier one did; None if it may succeed."""
        return None

    def watch(self, job: JobT) -> Callable[[str | None], None]:
        """The function that gets the running job's state many times a second, and None once it has ended."""
        return self.progress.state

    def work_off(self) -> Iterator[ResultT]:
        """Run what is not finished; yields the result of every job that is reached, in order."""
        with self.progress, self.stop.listening():
            for index, job in enumerate(self.jobs):
                yield self.finished(job) or self._attempt(index, job)
                if self.stop.requested or self.starter.lost is not None:
                    break

    def _attempt(self, index: int, job: JobT) -> ResultT:
        self.prepare(job)
        self.progress.start(index + 1, job.name, self.time_left_s(index))
        reason = self.reason_to_skip(job)
        started_s = time.monotonic()
        outcome = self._run_job(job) if reason is None else JobOutcome(status="skipped", message=reason)
        took_s = time.monotonic() - started_s
        result = self.store(job, outcome, took_s)
        self.progress.finish(result.status, took_s, result.message)
        if result.status not in ("ok", "skipped"):
            self.console.print(Text(f"  its log: {job.folder.log_path}"), soft_wrap=True)
        return result

    def _run_job(self, job: JobT) -> JobOutcome:
        on_state = self.watch(job)
        running = self.starter.start(job.command, job.folder, self._threads, self._run)
        outcome = follow_job(running, self._timeout_s, on_state, self.stop, self.console, self._grace_s)
        on_state(None)
        return outcome
