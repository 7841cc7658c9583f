"""The plan of a run on this machine, and the run: calibration, then the cells with interleaved repeats. Imports no torch."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from dpscope.launch.jobs.attended_job import THIS_HOST, JobStarter, SeveralNodesJob
from dpscope.launch.jobs.devices import DeviceType, resolve_devices
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.job_queue import JobQueue, Outcome, duration_text, held
from dpscope.launch.jobs.out_folder import check_run_place
from dpscope.launch.jobs.torchrun import torchrun_command
from dpscope.launch.measuring import calibration
from dpscope.launch.measuring.worker_arguments import WORKER_SETTINGS
from dpscope.launch.planning import manifest as planning
from dpscope.launch.planning.cells import make_plan, plan_findings, resolve, threads_per_process
from dpscope.launch.planning.run_config import flag_name, setting_text
from dpscope.launch.workload.data_files import check_data, download_data
from dpscope.launch.workload.model_size import ModelSize, checked_model_size
from dpscope.profiling.records.calibration import CalibrationSettings
from dpscope.profiling.records.config import MAY_CHANGE, ResolvedConfig, RunConfig
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import Cell, CellOptions, CellResult, CellStatus, Manifest, PlannedCell
from dpscope.profiling.records.settings import idle_settings, settings_of, with_settings
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import (
    CELLS_NAME,
    RepeatFolder,
    RunFolder,
    is_run_folder,
    remove_empty_folders,
    remove_written,
)
from dpscope.profiling.store.ownership import remove_report


@dataclass(frozen=True)
class PlannedJob:
    """One repeat of one cell, and the command that measures it."""

    cell: Cell
    repeat: int
    folder: RepeatFolder
    estimate: planning.CellEstimate
    command: tuple[str, ...]
    done: bool  # already measured

    @property
    def name(self) -> str:
        return f"{self.cell.name} repeat {self.repeat}"


@dataclass(frozen=True)
class PlanDescription:
    """Plan of `dpscope run`."""

    config: ResolvedConfig
    device_type: DeviceType
    threads_per_process: int
    plan: tuple[PlannedCell, ...]
    jobs: tuple[PlannedJob, ...]  # in order
    findings: tuple[Finding, ...]
    estimate_basis: str
    model_size: ModelSize
    calibration: CalibrationSettings | None  # before the cells

    @property
    def to_do(self) -> list[PlannedJob]:
        """The remaining jobs."""
        return [job for job in self.jobs if not job.done]

    @property
    def duration_s(self) -> float:
        """Estimated time of the calibration and the remaining jobs."""
        first = calibration.calibration_seconds(self.calibration) if self.calibration is not None else 0.0
        return first + sum(job.estimate.duration_s for job in self.to_do)

    @property
    def disk_bytes(self) -> int:
        """Estimated disk usage of the remaining jobs."""
        return sum(job.estimate.bytes for job in self.to_do)


def plan_run(
    config: RunConfig, out: Path, fresh: bool = False, repeats_by_cell: Mapping[str, int] | None = None, nodes: int = 1
) -> PlanDescription:
    """Plan of `run_sweep`; starts and writes nothing. Raises DpscopeError for a run that is not possible.

    `repeats_by_cell` reduces the number of repeats of cells, by name; cells may span up to `nodes` nodes.
    """
    devices = resolve_devices(config.workload.device)
    kind, resolved = devices.kind, resolve(config, devices, nodes=nodes)
    check_data(resolved.workload)
    run = RunFolder(out)
    check_run_place(run.path)
    begun = run.manifest() if is_run_folder(out) and not fresh else None
    plan = make_plan(resolved.matrix, resolved.workload.samples, kind)
    if begun is not None:
        _check_same_settings(out, begun, resolved)
        had = {planned.cell for planned in begun.plan}  # an older version had no DDP on one device
        plan = tuple(one for one in plan if one.cell in had or not (one.cell.traits.reducer and one.cell.devices == 1))
    size = checked_model_size(resolved.workload, resolved.optimizer)
    cells = [planned.cell for planned in plan if planned.skip_reason is None]
    estimates = {cell: planning.estimate_cell(cell, resolved, kind, size) for cell in cells}
    repeats, fewer, jobs = resolved.measurement.repeats, repeats_by_cell or {}, []
    for repeat in range(repeats):
        for cell in (one for one in cells if repeat < fewer.get(one.name, repeats)):
            folder, command = run.repeat(cell, repeat), tuple(torchrun_command(run.path, cell, repeat))
            result = None if fresh else folder.result()
            done = result is not None and result.status == "ok"
            jobs.append(PlannedJob(cell, repeat, folder, estimates[cell], command, done))
    findings = (
        *plan_findings(resolved.workload, resolved.matrix, kind),
        *planning.baseline_findings(plan),
        *planning.estimate_findings(plan, resolved, kind, size),
    )
    first = None
    if any(not job.done for job in jobs):
        first = calibration.plan_calibration(plan, resolved, kind, size, calibration.stored_calibration(run))
    return PlanDescription(
        config=resolved,
        device_type=kind,
        threads_per_process=threads_per_process(resolved.matrix),
        plan=plan,
        jobs=tuple(jobs),
        findings=findings,
        estimate_basis=planning.estimate_basis(kind, size),
        model_size=size,
        calibration=first,
    )


def _check_same_settings(out: Path, begun: Manifest, config: ResolvedConfig) -> None:
    before = settings_of(begun.config)
    for field, now in settings_of(config).items():
        if field not in MAY_CHANGE and before[field] != now:
            raise DpscopeError(
                f"--out {out}: holds a run with {setting_text(field, before[field])}, not {setting_text(field, now)}; use "
                "the same settings to resume it, --fresh to redo it, or another --out"
            )


def planned_cells(out: Path) -> list[SeveralNodesJob]:
    """The jobs in the manifest of a run that has begun, with or without results."""
    if not is_run_folder(out):
        return []
    run = RunFolder(out)
    manifest = run.manifest()
    return [
        SeveralNodesJob(
            f"{planned.cell.name} repeat {repeat}",
            tuple(torchrun_command(run.path, planned.cell, repeat)),
            run.repeat(planned.cell, repeat),
            manifest.threads_per_process,
            in_run=True,
        )
        for repeat in range(manifest.config.measurement.repeats)
        for planned in manifest.plan
        if planned.skip_reason is None
    ]


def describe_plan(
    config: RunConfig, out: Path, console: Console, fresh: bool = False, nodes: int = 1
) -> PlanDescription:
    """Print and return the plan of a run, with its estimates and exact commands; starts nothing.

    The commands of the jobs to do work by hand: those of a run that has begun name a cell of its manifest, others name all
    settings.
    """
    description = plan_run(config, out, fresh, nodes=nodes)
    table = Table(Column("cell: -d devices, -b batch per device", no_wrap=True), "repeats", "done", "time per repeat")
    _print_left_out(description, console)
    for cell in (planned.cell for planned in description.plan if planned.skip_reason is None):
        jobs = [job for job in description.jobs if job.cell == cell]
        done = sum(job.done for job in jobs)
        table.add_row(cell.name, str(len(jobs)), str(done), duration_text(jobs[0].estimate.duration_s))
    console.print(table)
    lines = []
    if (first := description.calibration) is not None:
        lines.append(f"{calibration.described(first)}: about {duration_text(calibration.calibration_seconds(first))}")
    lines.append(
        f"{description.device_type}, {counted(description.threads_per_process, 'thread')} per process; "
        f"{counted(len(description.to_do), 'job')} to do: about {_cost(description)} (an estimate: {description.estimate_basis})."
    )
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
    _print_findings(description, console)
    begun = is_run_folder(out) and not fresh
    for job in description.to_do:
        command = job.command if begun else _standalone_command(description.config, job.cell, job.repeat, out)
        console.print(Text(shlex.join(command)), soft_wrap=True)
    return description


def _standalone_command(config: ResolvedConfig, cell: Cell, repeat: int, out: Path) -> list[str]:
    """torchrun and a worker with flags for everything in which `config`, which is resolved, departs from the defaults.

    The threads are those of the whole run, which a worker that sees one cell cannot know. Over several nodes the same command is
    given on each, with the first one's name.
    """
    strategy = cell.traits.stands_for or cell.strategy
    left_out = {*idle_settings(config), *(["amp"] if cell.options.amp else [])}
    settings = [name for name in WORKER_SETTINGS if name not in left_out]
    meeting = (f"--nnodes={cell.nodes}", "--rdzv-backend=c10d", "--rdzv-endpoint=HOST0:29500", "--rdzv-id=1")
    return [
        *(sys.executable, "-m", "torch.distributed.run", *(("--standalone",) if cell.nodes == 1 else meeting)),
        *(f"--nproc-per-node={cell.processes // cell.nodes}", "-m", "dpscope.launch.worker", "--out", str(out)),
        *("--strategy", strategy, "--batch-size", str(cell.batch_size)),
        *(("--devices", str(cell.devices)) if cell.traits.threaded else ()),
        *_flags(config, RunConfig(), settings),
        *_flags(cell.options, CellOptions(), CellOptions.__struct_fields__),
        *("--threads", str(threads_per_process(config.matrix)), "--repeat", str(repeat)),
    ]


def _flags(chosen: msgspec.Struct, defaults: msgspec.Struct, names: Sequence[str]) -> list[str]:
    values, usual = settings_of(chosen), settings_of(defaults)
    flags = [(flag_name(name), values[name]) for name in names if values[name] != usual[name]]
    return [part for flag, value in flags for part in ([flag] if value is True else [flag, str(value)])]


def print_beginning(description: PlanDescription, console: Console) -> None:
    """Print the plan of a run in a few lines."""
    _print_left_out(description, console)
    done = sum(job.done for job in description.jobs)
    cells = len({job.cell for job in description.jobs})
    already = f", {done} done already" if done else ""
    console.print(
        f"{counted(len(description.jobs), 'job')} of {counted(cells, 'cell')} on {description.device_type}{already}; about "
        f"{_cost(description)} (--dry-run lists them).",
        highlight=False,
    )
    _print_findings(description, console)


def _print_left_out(description: PlanDescription, console: Console) -> None:
    for planned in description.plan:
        if planned.skip_reason is not None:
            console.print(Text(f"{planned.cell.name} is left out: {planned.skip_reason}"), soft_wrap=True)


def _cost(description: PlanDescription) -> str:
    return f"{duration_text(description.duration_s)} and {description.disk_bytes / 1e6:.0f} MB of disk"


def _print_findings(description: PlanDescription, console: Console) -> None:
    for finding in description.findings:
        console.print(Text(f"{finding.severity}: {finding.message} {finding.next_step}"), soft_wrap=True)


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

    starter.check_gpus(planning.most_on_several_nodes(job.cell for job in description.jobs))
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
    manifest = planning.new_manifest(
        description.config, description.device_type, description.threads_per_process, description.plan, code=Path.cwd()
    )
    hosts = starter.hosts(manifest.environment)
    unlike = planning.hosts_findings(manifest.environment, hosts)
    manifest = msgspec.structs.replace(manifest, hosts=hosts, findings=(*manifest.findings, *unlike))
    had = run.manifest() if is_run_folder(run.path) else None
    mixed: tuple[Finding, ...] = ()
    if had is not None:
        planning.check_same_conditions(run.path, had, manifest)
        mixed = (
            planning.commit_findings(had.environment.commit, manifest.environment.commit) if description.to_do else ()
        )
    settings = None
    if description.to_do:  # a stored calibration of another machine does not count
        stored = calibration.of_this_machine(calibration.stored_calibration(run), manifest.environment)
        size, kind = description.model_size, description.device_type
        settings = calibration.plan_calibration(description.plan, description.config, kind, size, stored)
    failures = calibration.calibrate_first(run, settings, manifest.environment, console, starter)
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
