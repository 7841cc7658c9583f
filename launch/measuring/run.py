"""A run: its plan, its cells one after another with repeats interleaved, resumed where it stopped. Imports no torch."""

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.attended_job import follow_job, outcome_of, tell_survivors
from dpscope.launch.jobs.job_files import remove_job_files
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.out_folder import locked
from dpscope.launch.jobs.progress import SweepProgress
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import TorchrunJob, end_leftovers
from dpscope.launch.measuring.planned_jobs import PlanDescription, PlannedJob, describe_plan, plan_run, print_plan
from dpscope.launch.planning.manifest import FIELDS_OF_THE_SWEEP, check_same_conditions, new_manifest
from dpscope.profiling.records.run import Cell, CellResult, CellStatus, Manifest, RunConfig
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import CELLS_NAME, RunFolder, is_run_folder
from dpscope.profiling.store.layout import remove_written
from dpscope.profiling.store.ownership import remove_report

__all__ = ["SweepOutcome", "describe_plan", "run_sweep"]


@dataclass(frozen=True)
class SweepOutcome:
    """How a sweep ended."""

    manifest: Manifest
    results: tuple[CellResult, ...]  # of every planned repeat that was reached, earlier sweeps' included
    stop: StopRequest

    @property
    def exit_status(self) -> int:
        """128 + the number of the signal that ended it, else 0 or 1."""
        return self.stop.exit_status if self.stop.requested else int(not self.ok)

    @property
    def ok(self) -> bool:
        """Whether every planned repeat is measured."""
        return not self.stop.requested and all(result.status == "ok" for result in self.results)


def run_sweep(config: RunConfig, out: Path, fresh: bool, console: Console) -> SweepOutcome:
    """Measure every cell of a run that is not measured yet, repeats interleaved (A B C A B C).

    A cell that fails is recorded as such and the others go on; one that ran out of memory or of time is not
    tried again in this sweep, nor are its larger batches. SIGINT and SIGTERM end the running cell with all its
    processes and record it. Raises DpscopeError for a mistake of the user's, before anything is started.
    """
    description = plan_run(config, out, fresh)
    print_plan(description, console)
    run = RunFolder(out)

    def note(text: str) -> None:
        console.print(Text(text), soft_wrap=True)

    with locked(run.path, wait=False, note=note):
        tell_survivors(end_leftovers(run), console)
        if fresh or not is_run_folder(run.path):
            _remove_measurements(run)
        manifest = _open_manifest(run, description)
        if description.config.download:
            from dpscope.launch.workload.image_sets import download_data

            download_data(description.config)
        return _Sweep(run, manifest, description, console).measure()


def _remove_measurements(run: RunFolder) -> None:
    """Remove what dpscope wrote, the manifest last: without it the rest would be nobody's."""
    remove_report(run.path)
    remove_written(run.path, run.path / CELLS_NAME)
    run.manifest_path.unlink(missing_ok=True)


def _open_manifest(run: RunFolder, description: PlanDescription) -> Manifest:
    """The run's manifest, written if this is its beginning or resumes it with more repeats or another time limit."""
    manifest = new_manifest(
        description.config, description.device_type, description.threads_per_process, description.plan
    )
    if not is_run_folder(run.path):
        write_json(run.manifest_path, manifest)
        return manifest
    had = run.manifest()
    check_same_conditions(run.path, had, manifest)
    changed = {field: getattr(description.config, field) for field in FIELDS_OF_THE_SWEEP}
    kept = msgspec.structs.replace(had, config=msgspec.structs.replace(had.config, **changed))
    if kept != had:
        write_json(run.manifest_path, kept)
    return kept


class _Sweep:
    """The jobs of one run, in order."""

    def __init__(self, run: RunFolder, manifest: Manifest, description: PlanDescription, console: Console) -> None:
        self._run = run
        self._manifest = manifest
        self._description = description
        self._console = console
        self._progress = SweepProgress(console, len(description.jobs))
        self._stop = StopRequest()
        self._results: list[CellResult] = []
        self._took_s: dict[str, float] = {}
        self._hopeless: dict[str, tuple[Cell, CellStatus]] = {}

    def measure(self) -> SweepOutcome:
        """Run what is not done."""
        with self._progress, self._stop.listening():
            for index, job in enumerate(self._description.jobs):
                result = self._run.repeat(job.cell, job.repeat).result()
                if result is None or result.status != "ok":
                    result = self._attempt(index, job)
                self._results.append(result)
                if self._stop.requested:
                    break
        return SweepOutcome(manifest=self._manifest, results=tuple(self._results), stop=self._stop)

    def _attempt(self, index: int, job: PlannedJob) -> CellResult:
        """Measure one repeat, or record why not."""
        folder = self._run.repeat(job.cell, job.repeat)
        folder.clear()
        self._progress.start(index + 1, f"{job.cell.name} repeat {job.repeat}", self._time_left_s(index))
        reason = self._reason_to_skip(job.cell)
        started = time.monotonic()
        outcome = self._run_job(job) if reason is None else JobOutcome(status="skipped", message=reason)
        took_s = time.monotonic() - started
        remove_job_files(folder.path)
        if outcome.status == "ok":
            self._took_s[job.cell.name] = took_s
            result = folder.result()
            assert result is not None
        else:
            result = self._record_failure(job, outcome, took_s)
        self._progress.finish(result.status, result.duration_s, result.message)
        return result

    def _run_job(self, job: PlannedJob) -> JobOutcome:
        folder = self._run.repeat(job.cell, job.repeat)
        timeout_s = self._description.config.timeout_s
        torchrun = TorchrunJob(job.command, folder, self._manifest.threads_per_process, self._run)
        end = follow_job(torchrun, timeout_s, self._progress.state, self._stop, self._console)
        return outcome_of(folder, end, timeout_s)

    def _record_failure(self, job: PlannedJob, outcome: JobOutcome, took_s: float) -> CellResult:
        folder = self._run.repeat(job.cell, job.repeat)
        folder.clear_measurements()
        result = CellResult(
            cell=job.cell,
            repeat=job.repeat,
            status=outcome.status,
            duration_s=took_s,
            message=outcome.message,
            log_tail=outcome.log_tail,
        )
        write_json(folder.result_path, result)
        growing = self._description.config.batch_growth is not None
        killed = outcome.status == "crashed" and "killed by signal 9" in outcome.message
        if outcome.status in ("out_of_memory", "timed_out") or (growing and killed):
            self._hopeless.setdefault(job.cell.name, (job.cell, outcome.status))
        return result

    def _reason_to_skip(self, cell: Cell) -> str | None:
        """Why a cell would fail as an earlier one did: the same one, or the same with a smaller batch."""
        for failed, status in self._hopeless.values():
            shapes = {(one.strategy, one.devices, one.options) for one in (failed, cell)}
            larger = cell.batch_size > failed.batch_size
            growing = self._description.config.batch_growth is not None
            what = "timed out" if status == "timed_out" else "ran out of memory"
            if failed == cell:
                return f"{failed.name} {what} in an earlier repeat"
            if len(shapes) == 1 and larger and (status != "timed_out" or growing):
                return f"{failed.name} {what} with a smaller batch"
        return None

    def _time_left_s(self, index: int) -> float:
        """Of this job and those after it: what the same cell took before, else the estimate, scaled by what was."""
        jobs = self._description.jobs
        estimated = {job.cell.name: job.estimate.duration_s for job in jobs}
        known = sum(estimated[name] for name in self._took_s)
        ratio = sum(self._took_s.values()) / known if known else 1.0
        return sum(
            self._took_s.get(job.cell.name, job.estimate.duration_s * ratio)
            for job in jobs[index:]
            if not job.done and self._reason_to_skip(job.cell) is None
        )
