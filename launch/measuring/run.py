"""A run: calibration, then the cells with interleaved repeats; resumes where it stopped. Imports no torch."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console

from dpscope.launch.jobs.attended_job import THIS_HOST, JobStarter
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.job_queue import JobQueue, Outcome, held
from dpscope.launch.measuring.calibration import calibrate_first, of_this_machine, plan_calibration, stored_calibration
from dpscope.launch.measuring.planned_jobs import PlanDescription, PlannedJob, describe_plan, plan_run, print_beginning
from dpscope.launch.planning.manifest import (
    check_same_conditions,
    commit_findings,
    hosts_findings,
    most_on_several_nodes,
    new_manifest,
)
from dpscope.launch.workload.data_files import download_data
from dpscope.profiling.records.config import MAY_CHANGE, RunConfig
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import Cell, CellResult, CellStatus, Manifest
from dpscope.profiling.records.settings import settings_of, with_settings
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import CELLS_NAME, RunFolder, is_run_folder, remove_empty_folders, remove_written
from dpscope.profiling.store.ownership import remove_report

__all__ = ["describe_plan", "run_sweep"]


def run_sweep(
    config: RunConfig,
    out: Path,
    fresh: bool,
    console: Console,
    repeats_by_cell: Mapping[str, int] | None = None,
    starter: JobStarter = THIS_HOST,
) -> Outcome[Manifest, CellResult]:
    """Measure every cell of a run that is not measured yet, with interleaved repeats (A B C A B C).

    The run continues after a cell that fails, which is recorded; one that ran out of memory or time is not tried again in this
    sweep, nor are larger batches of it. SIGINT and SIGTERM end and record the running cell. `repeats_by_cell` is as in
    `plan_run`; `starter` starts the jobs on its nodes. Raises DpscopeError for a mistake of the user before anything starts.
    """
    description = plan_run(config, out, fresh, repeats_by_cell, starter.count)
    if repeats_by_cell is None or description.to_do:  # --detect prints its choice itself
        print_beginning(description, console)
    run = RunFolder(out)

    starter.check_gpus(most_on_several_nodes(job.cell for job in description.jobs))
    with held(run.path, console, starter):
        if fresh and is_run_folder(run.path):
            _remove_measurements(run)
        manifest = _open_manifest(run, description, console, dict(repeats_by_cell or {}), starter)
        download_data(description.config.workload)
        sweep = _Sweep(run, manifest, description, console, starter)
        results = tuple(sweep.work_off())
        return Outcome(manifest=manifest, results=results, stop=sweep.stop, lost=starter.lost)


def _remove_measurements(run: RunFolder) -> None:
    """Remove dpscope's files of the cells in the manifest, and then the manifest."""
    remove_report(run.path)
    for planned in run.manifest().plan:
        remove_written(run.path, run.path / CELLS_NAME / planned.cell.name)
    remove_empty_folders(run.path / CELLS_NAME)
    run.manifest_path.unlink()


def _open_manifest(
    run: RunFolder, description: PlanDescription, console: Console, repeats_by_cell: dict[str, int], starter: JobStarter
) -> Manifest:
    """The run's manifest, written if the run is new or is resumed with more repeats or another time limit.

    The collectives are timed before it is written, so that predictions of the cells are forecasts.
    """
    manifest = new_manifest(
        description.config, description.device_type, description.threads_per_process, description.plan, code=Path.cwd()
    )
    hosts = starter.hosts(manifest.environment)
    unlike = hosts_findings(manifest.environment, hosts)
    manifest = msgspec.structs.replace(manifest, hosts=hosts, findings=(*manifest.findings, *unlike))
    had = run.manifest() if is_run_folder(run.path) else None
    mixed: tuple[Finding, ...] = ()
    if had is not None:
        check_same_conditions(run.path, had, manifest)
        mixed = commit_findings(had.environment.commit, manifest.environment.commit) if description.to_do else ()
    settings = None
    if description.to_do:  # a stored calibration of another machine does not count
        stored = of_this_machine(stored_calibration(run), manifest.environment)
        size, kind = description.model_size, description.device_type
        settings = plan_calibration(description.plan, description.config, kind, size, stored)
    failures = calibrate_first(run, settings, manifest.environment, console, starter)
    if had is None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = msgspec.structs.replace(manifest, created_at=now, findings=(*manifest.findings, *failures))
        write_json(run.manifest_path, manifest)
        return manifest
    requested = settings_of(description.config)
    renewed = (PlanCode.CALIBRATION_FAILED.code, PlanCode.MIXED_HOSTS.code)
    findings = (*(one for one in had.findings if one.code not in renewed), *unlike, *mixed, *failures)
    updated = msgspec.structs.replace(
        had,
        config=with_settings(had.config, **{name: requested[name] for name in MAY_CHANGE}),
        findings=tuple(dict.fromkeys(findings)),
        repeats_by_cell=repeats_by_cell,
        published=manifest.published,
        hosts=hosts,
    )
    if updated != had:
        write_json(run.manifest_path, updated)
    return updated


class _Sweep(JobQueue[PlannedJob, CellResult]):
    """The jobs of one run."""

    def __init__(
        self, run: RunFolder, manifest: Manifest, description: PlanDescription, console: Console, starter: JobStarter
    ) -> None:
        config, threads = description.config, manifest.threads_per_process
        super().__init__(run, description.jobs, threads, config.measurement.timeout_s, console, starter=starter)
        self._growing = config.matrix.batch_growth is not None
        self._took_s: dict[str, float] = {}
        self._failed_cells: dict[str, tuple[Cell, CellStatus]] = {}  # that would fail again, by name

    def finished(self, job: PlannedJob) -> CellResult | None:
        result = job.folder.result()
        return result if result is not None and result.status == "ok" else None

    def prepare(self, job: PlannedJob) -> None:
        job.folder.clear()

    def store(self, job: PlannedJob, outcome: JobOutcome, took_s: float) -> CellResult:
        if outcome.status == "ok" and (result := job.folder.result()) is not None:
            self._took_s[job.cell.name] = took_s
            return result
        job.folder.clear_measurements()
        result = CellResult(
            cell=job.cell,
            repeat=job.repeat,
            status=outcome.status,
            duration_s=took_s,
            message=outcome.message,
            log_tail=outcome.log_tail,
        )
        write_json(job.folder.result_path, result)
        if outcome.status in ("out_of_memory", "timed_out"):
            self._failed_cells.setdefault(job.cell.name, (job.cell, outcome.status))
        return result

    def reason_to_skip(self, job: PlannedJob) -> str | None:
        """If this cell, or the same with a smaller batch, failed in a way that will recur."""
        cell = job.cell
        for failed, status in self._failed_cells.values():
            shapes = {(one.strategy, one.devices, one.nodes, one.options) for one in (failed, cell)}
            larger = cell.batch_size > failed.batch_size
            what = "timed out" if status == "timed_out" else "ran out of memory"
            if failed == cell:
                return f"{failed.name} {what} in an earlier repeat"
            if len(shapes) == 1 and larger and (status != "timed_out" or self._growing):
                return f"{failed.name} {what} with a smaller batch"
        return None

    def time_left_s(self, index: int) -> float:
        """Sum over the remaining jobs: the time of the same cell, else its estimate, scaled by the ratio so far."""
        estimated = {job.cell.name: job.estimate.duration_s for job in self.jobs}
        known = sum(estimated[name] for name in self._took_s)
        ratio = sum(self._took_s.values()) / known if known else 1.0
        return sum(
            self._took_s.get(job.cell.name, job.estimate.duration_s * ratio)
            for job in self.jobs[index:]
            if not job.done and self.reason_to_skip(job) is None
        )
