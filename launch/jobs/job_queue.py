"""Runs the jobs of one command in order: shows progress, keeps results, records failures, stops on a signal. Imports no torch."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dpscope.launch.jobs.attended_job import THIS_HOST, JobStarter, follow_job, warn_about_leftover_processes
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.out_folder import locked
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import end_leftovers
from dpscope.profiling.records.run import CellStatus
from dpscope.profiling.store.folders import JobFolder, RunFolder

_STYLES = {"ok": "green", "skipped": "yellow", "interrupted": "yellow"}


class SweepProgress:
    """A live line while a job runs, which stays if the job fails; plain lines without a terminal."""

    def __init__(self, console: Console, total: int) -> None:
        self._console, self._total = console, total
        self._title, self._state = "", ""
        self._started_s = 0.0
        self._time_left_s: float | None = None

    @contextmanager
    def shown(self) -> Iterator["SweepProgress"]:
        """Show the line until the block ends."""
        live = Live(get_renderable=self._line, console=self._console, refresh_per_second=2, transient=True)
        with live if self._console.is_terminal else nullcontext():  # elsewhere each refresh would repeat the line
            yield self

    def start(self, number: int, name: str, time_left_s: float | None) -> None:
        """The `number`-th job begins; `time_left_s` is the estimated time of all remaining jobs, None while unknown."""
        self._title = f"[{number}/{self._total}] {name}"
        self._started_s, self._time_left_s = time.monotonic(), time_left_s
        self.state(None)
        if not self._console.is_terminal:
            left = "" if time_left_s is None else f", about {duration_text(time_left_s)} left"
            self._console.print(Text(f"{self._title}: started{left}"))

    def state(self, state: str | None) -> None:
        """Set the running job's state, such as its pass; None before its first."""
        self._state = state or "starting"

    def finish(self, status: CellStatus, duration_s: float, message: str) -> None:
        """The running job has ended; `message` is the reason if it is not ok."""
        if status != "ok" or not self._console.is_terminal:
            mark = (status.replace("_", " "), _STYLES.get(status, "red"))
            text = f" in {duration_text(duration_s)}" + (f": {message}" if message else "")
            self._console.print(Text.assemble(f"{self._title}: ", mark, text), soft_wrap=True)
        self._title = ""

    def _line(self) -> Text:
        if not self._title:
            return Text("")
        elapsed_s = time.monotonic() - self._started_s
        text = f"{self._title}: {self._state}, {duration_text(elapsed_s)}"
        if self._time_left_s is not None:
            text += f"; about {duration_text(max(0.0, self._time_left_s - elapsed_s))} left"
        return Text(text)


def duration_text(seconds: float) -> str:
    """Seconds as `42 s`, `3 min 05 s` or `3 h 26 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


class QueuedJob(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def folder(self) -> JobFolder: ...
    @property
    def command(self) -> tuple[str, ...]: ...


class StoredResult(Protocol):
    """The stored result of a job; `message` is the reason if it is not ok."""

    @property
    def status(self) -> CellStatus: ...
    @property
    def message(self) -> str: ...


JobT = TypeVar("JobT", bound=QueuedJob)
ResultT = TypeVar("ResultT", bound=StoredResult)
ManifestT = TypeVar("ManifestT")


@dataclass(frozen=True)
class Outcome(Generic[ManifestT, ResultT]):
    manifest: ManifestT
    results: tuple[ResultT, ...]  # of every planned job that was reached, those of earlier calls included
    stop: StopRequest
    lost: str | None = None  # which node was lost, so that the remaining jobs were not reached

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
    """Hold a run folder's lock, and first end processes that an earlier command left running there, on all nodes.

    Raises DpscopeError if another dpscope writes there.
    """
    with locked(out, wait=False, note=lambda text: console.print(Text(text), soft_wrap=True)):
        warn_about_leftover_processes(end_leftovers(RunFolder(out)), console)
        starter.clear()
        yield


class JobQueue(ABC, Generic[JobT, ResultT]):
    """Runs jobs in order; a subclass defines how they are prepared and stored."""

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
        """`timeout_s` is each job's time limit; a job that is stopped has `grace_s` to save what it has."""
        self.jobs, self.console, self.starter = jobs, console, starter
        self.progress, self.stop = SweepProgress(console, len(jobs)), StopRequest()
        self._run, self._threads = run, threads
        self._timeout_s, self._grace_s = timeout_s, grace_s

    @abstractmethod
    def finished(self, job: JobT) -> ResultT | None:
        """The stored result of a job that need not run again, else None."""

    @abstractmethod
    def prepare(self, job: JobT) -> None:
        """Clear the job's folder of an earlier attempt's files."""

    @abstractmethod
    def store(self, job: JobT, outcome: JobOutcome, took_s: float) -> ResultT:
        """The job's result, or one made from its outcome and stored."""

    @abstractmethod
    def time_left_s(self, index: int) -> float | None:
        """Estimated time of the job at `index` and those after it; None while unknown."""

    def reason_to_skip(self, job: JobT) -> str | None:
        """Why a job would fail as an earlier one did; None if it may succeed."""
        return None

    def watch(self, job: JobT) -> Callable[[str | None], None]:
        """The function that gets the running job's state many times a second, and None once it has ended."""
        return self.progress.state

    def work_off(self) -> Iterator[ResultT]:
        """Run the jobs that are not finished; yields the result of every job that is reached, in order."""
        with self.progress.shown(), self.stop.listening():
            for index, job in enumerate(self.jobs):
                yield self.finished(job) or self._attempt(index, job)
                if self.stop.requested or self.starter.lost is not None:
                    break

    def _attempt(self, index: int, job: JobT) -> ResultT:
        self.prepare(job)
        self.progress.start(index + 1, job.name, self.time_left_s(index))
        started_s = time.monotonic()
        if (reason := self.reason_to_skip(job)) is not None:
            outcome = JobOutcome("skipped", reason)
        else:
            on_state = self.watch(job)
            running = self.starter.start(job.command, job.folder, self._threads, self._run)
            outcome = follow_job(running, self._timeout_s, on_state, self.stop, self.console, self._grace_s)
            on_state(None)
        took_s = time.monotonic() - started_s
        result = self.store(job, outcome, took_s)
        self.progress.finish(result.status, took_s, result.message)
        if result.status not in ("ok", "skipped"):
            self.console.print(Text(f"  its log: {job.folder.log_path}"), soft_wrap=True)
        return result
