"""The plan of a run on this machine, and the run: calibration, then the cells with interleaved
repeats. Imports no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Column, Table

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.devices import DeviceType, resolve_devices
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.job_queue import (
    THIS_HOST,
    JobQueue,
    JobStarter,
    Outcome,
    duration_text,
    held,
)
from dpscope.launch.jobs.out_folder import check_run_place, locked
from dpscope.launch.jobs.torchrun import Job
from dpscope.launch.measuring import first_calibration
from dpscope.launch.planning import manifest as planning
from dpscope.launch.planning.cells import make_plan, plan_findings, resolve, threads_per_process
from dpscope.launch.planning.run_config import load_config
from dpscope.launch.planning.variants import combined_variants
from dpscope.launch.workload.data_files import check_data, download_data
from dpscope.launch.workload.model_size import checked_model_size
from dpscope.profiling.machine.conditions import condition_differences
from dpscope.profiling.records.calibration import CalibrationSettings
from dpscope.profiling.records.config import MAY_CHANGE, ResolvedConfig, RunConfig
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.plan_codes import PlanCode
from dpscope.profiling.records.run import Cell, CellResult, CellStatus, Manifest, PlannedCell
from dpscope.profiling.records.settings import settings_of, with_settings
from dpscope.profiling.records.turns import Order, balanced_orders
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
from dpscope.profiling.store.shown_text import complain


@dataclass(frozen=True, kw_only=True)
class CellJob(Job):
    """A repeat of a cell."""

    folder: RepeatFolder
    cell: Cell
    repeat: int
    batches_grow: bool = False  # of the run: larger ones are tried until one fails

    @property
    def finished(self) -> bool:
        result = self.folder.result()
        return result is not None and result.status == "ok"

    def prepare(self) -> None:
        self.folder.clear()

    def store_failure(self, outcome: JobOutcome, took_s: float) -> str:
        """Store it in place of what the job wrote, except its log."""
        log_path = self.folder.log_path
        remove_written(self.folder.run.path, self.folder.path, lambda path: path == log_path)
        result = CellResult(
            self.cell, self.repeat, outcome.status, took_s, outcome.message, outcome.log_tail
        )
        write_json(self.folder.result_path, result)
        return outcome.message

    def fails_like(self, failed: Job, outcome: JobOutcome) -> str | None:
        """If this cell, or the same with a smaller batch, ran out of memory or time."""
        what = _RECURS.get(outcome.status)
        if what is None or not isinstance(failed, CellJob):
            return None
        if failed.cell == self.cell:
            return f"{failed.cell.name} {what} in an earlier repeat"
        shapes = {
            (cell.strategy, cell.devices, cell.nodes, cell.options)
            for cell in (failed.cell, self.cell)
        }
        larger = self.cell.batch_size > failed.cell.batch_size
        if len(shapes) == 1 and larger and (outcome.status != "timed_out" or self.batches_grow):
            return f"{failed.cell.name} {what} with a smaller batch"
        return None


_RECURS: dict[CellStatus, str] = {"timed_out": "timed out", "out_of_memory": "ran out of memory"}


@dataclass(frozen=True, kw_only=True)
class RunPlan(planning.Plan[CellJob]):
    config: ResolvedConfig
    plan: tuple[PlannedCell, ...]
    estimates: Mapping[Cell, planning.JobEstimate]  # of one repeat of each cell that is measured
    calibration: CalibrationSettings | None  # before the cells
    # of the cells in each repeat; none in a run whose first cells were measured by hand
    orders: tuple[Order, ...]

    @property
    def duration_s(self) -> float:
        """Estimated time of the calibration and the remaining jobs."""
        cells_s = super().duration_s
        if self.calibration is None:
            return cells_s
        return first_calibration.calibration_seconds(self.calibration) + cells_s


def plan_run(
    config: RunConfig,
    out: Path,
    fresh: bool = False,
    repeats_by_cell: Mapping[str, int] | None = None,
    nodes: int = 1,
) -> RunPlan:
    """Plan of `run_sweep`; starts and writes nothing. Raises DpscopeError for a run that is not
    possible.

    `repeats_by_cell` reduces the number of repeats of cells, by name; cells may span up to `nodes`
    nodes.
    """
    devices = resolve_devices(config.workload.device)
    kind = devices.kind
    resolved = resolve(config, devices, nodes=nodes)
    check_data(resolved.workload)
    run = RunFolder(out)
    check_run_place(run.path)
    begun = run.manifest() if is_run_folder(out) and not fresh else None
    plan = make_plan(resolved.matrix, resolved.workload.samples, kind)
    if begun is not None:
        planning.check_same_settings(
            f"--out {out}: holds a run", begun.config, resolved, MAY_CHANGE
        )
    size = checked_model_size(resolved.workload, resolved.optimizer)
    cells = planning.measured_cells(plan)
    repeats = resolved.measurement.repeats
    orders = () if begun is not None and not begun.orders else _orders(cells, resolved, begun)
    estimates = {cell: planning.estimate_cell(cell, resolved, kind, size) for cell in cells}
    threads = threads_per_process(resolved.matrix)
    fewer = repeats_by_cell or {}
    jobs = [
        replace(
            job,
            done=not fresh and job.finished,
            timeout_s=resolved.measurement.timeout_s,
            estimate_s=estimates[job.cell].duration_s,
            estimate_bytes=estimates[job.cell].bytes,
            batches_grow=resolved.matrix.batch_growth is not None,
        )
        for job in _jobs(run, cells, repeats, kind, threads, orders)
        if job.repeat < fewer.get(job.cell.name, repeats)
    ]
    findings = (
        *plan_findings(resolved.workload, resolved.matrix, kind),
        *planning.baseline_findings(plan),
        *planning.estimate_findings(estimates, resolved.measurement.timeout_s),
    )
    first = None
    if any(not job.done for job in jobs):
        first = first_calibration.plan_calibration(
            plan, resolved, kind, size, first_calibration.stored_calibration(run)
        )
    return RunPlan(
        device_type=kind,
        threads=threads,
        jobs=tuple(jobs),
        findings=findings,
        config=resolved,
        plan=plan,
        estimates=estimates,
        model_size=size,
        calibration=first,
        orders=orders,
    )


def _orders(
    cells: Sequence[Cell], config: ResolvedConfig, begun: Manifest | None
) -> tuple[Order, ...]:
    measured = begun.orders if begun is not None else ()
    return balanced_orders(len(cells), config.measurement.repeats, config.workload.seed, measured)


def _jobs(
    run: RunFolder,
    cells: Sequence[Cell],
    repeats: int,
    kind: DeviceType,
    threads: int,
    orders: Sequence[Order],
) -> list[CellJob]:
    """All repeats of the cells in turns, each in its order; without orders in that of the cells."""
    turns = orders or [tuple(range(len(cells)))] * repeats
    out = str(run.path)
    return [
        CellJob(
            name=f"{cell.name} repeat {repeat}",
            program=Assignment(task="measure", out=out, cell=cell.name, repeat=repeat).program(
                kind
            ),
            folder=run.repeat(cell, repeat),
            threads=threads,
            processes=cell.processes,
            nodes=cell.nodes,
            run=run,
            alike=cell.name,
            cell=cell,
            repeat=repeat,
        )
        for repeat, order in enumerate(turns[:repeats])
        for cell in (cells[place] for place in order)
    ]


def planned_cells(out: Path) -> Sequence[Job]:
    """The jobs in the manifest of a run that has begun, with or without results."""
    if not is_run_folder(out):
        return []
    run = RunFolder(out)
    manifest = RunFolder(out).manifest()
    cells = planning.measured_cells(manifest.plan)
    repeats = manifest.config.measurement.repeats
    kind = manifest.device_type
    threads = manifest.threads_per_process
    return _jobs(run, cells, repeats, kind, threads, manifest.orders)


def describe_plan(
    config: RunConfig,
    out: Path,
    console: Console,
    fresh: bool = False,
    nodes: int = 1,
    options: Mapping[str, object] | None = None,
    config_path: Path | None = None,
) -> RunPlan:
    """Print and return the plan of a run, with its estimates and exact commands; starts nothing.

    A command for each cell's first repeat to do, which works by hand: it begins the run, with the
    `options` and the file that `config` was read from, unless it has begun.
    """
    description = plan_run(config, out, fresh, nodes=nodes)
    console.print(_what_is_measured(description.config, out), highlight=False, soft_wrap=True)
    planning.print_left_out(description.plan, console)
    console.print(_cells_table(description))
    combined = combined_variants(description.config.matrix)
    if combined:
        console.print(combined, highlight=False, soft_wrap=True)
    if len(description.estimates) > 1 and len(description.orders) > 1:
        orders = ", ".join(_numbers(order) for order in description.orders)
        console.print(
            f"Order of the cells in each repeat: {orders}.", highlight=False, soft_wrap=True
        )
    if (first := description.calibration) is not None:
        about = f"about {duration_text(first_calibration.calibration_seconds(first))}"
        console.print(
            f"{first_calibration.described(first)}: {about}", highlight=False, soft_wrap=True
        )
    planning.print_estimate(description, console)
    planning.print_findings(description.findings, console)
    by_hand: dict[str, object] = {}
    if fresh or not is_run_folder(out):
        by_hand = {"options": options or {}, "config": config_path, "nodes": nodes}
    others = "repeat is the number of the repeat"
    planning.print_commands(description, console, others, by_hand)
    return description


def _what_is_measured(config: ResolvedConfig, out: Path) -> str:
    workload = config.workload
    measurement = config.measurement
    timed = (
        f"{measurement.steps} timed"
        if measurement.epochs is None
        else f"{counted(measurement.epochs, 'timed epoch')}"
    )
    return (
        f"{workload.model} on {workload.data} data, into {out}. Each repeat: "
        f"{measurement.warmup_steps} warm-up, {timed} and {measurement.traced_steps} traced steps."
    )


def _cells_table(description: RunPlan) -> Table:
    """A row for each cell: its number, its repeats, how many of them are done and what one
    takes.
    """
    heading = Column("cell: -d devices, -b batch per device", no_wrap=True)
    headings = ("", heading, "repeats", "done", "time per repeat")
    table = Table(*headings, box=None, pad_edge=False)
    for number, (cell, estimate) in enumerate(description.estimates.items(), 1):
        jobs = [job for job in description.jobs if job.cell == cell]
        done = sum(job.done for job in jobs)
        duration = duration_text(estimate.duration_s)
        table.add_row(str(number), cell.name, str(len(jobs)), str(done), duration)
    return table


def _numbers(order: Order) -> str:
    """The cells of one repeat, by their numbers in the table."""
    return " ".join(str(place + 1) for place in order)


def begin_by_hand(assignment: Assignment) -> None:
    """Write the manifest of the run of a cell that is started by hand, unless another one has.

    Raises DpscopeError as `plan_run` does, also for a run that was begun with other settings or on
    another machine.
    """
    out = assignment.folder
    options = dict(assignment.options or {})
    config = load_config(Path(assignment.config) if assignment.config else None, options)
    plan = plan_run(config, out, nodes=assignment.nodes)  # mistakes, before anything is written
    manifest = planning.new_manifest(
        plan.config, plan.device_type, plan.threads, plan.plan, code=Path.cwd()
    )
    with locked(out, wait=True, note=complain):
        if is_run_folder(out):
            plan_run(config, out, nodes=assignment.nodes)
            differences = condition_differences(RunFolder(out).manifest(), manifest)
            planning.check_comparable(out, differences)
        else:
            write_json(RunFolder(out).manifest_path, manifest)


def print_beginning(description: RunPlan, console: Console) -> None:
    planning.print_left_out(description.plan, console)
    done = sum(job.done for job in description.jobs)
    cells = len({job.cell for job in description.jobs})
    already = f", {done} done already" if done else ""
    console.print(
        f"{counted(len(description.jobs), 'job')} of {counted(cells, 'cell')} on {description.device_type}{already}; about "
        f"{description.cost} (--dry-run lists them).",
        highlight=False,
    )
    planning.print_findings(description.findings, console)


def run_sweep(
    config: RunConfig,
    out: Path,
    fresh: bool,
    console: Console,
    repeats_by_cell: Mapping[str, int] | None = None,
    starter: JobStarter = THIS_HOST,
) -> Outcome[CellResult]:
    """Measure every cell of a run that is not measured yet, with interleaved repeats (A B C C B A).

    The run continues after a cell that fails, which is recorded; one that ran out of memory or time
    is not tried again in this sweep, nor are larger batches of it. SIGINT and SIGTERM end and
    record the running cell. `repeats_by_cell` is as in `plan_run`; `starter` starts the jobs on its
    nodes. Raises DpscopeError for a mistake of the user before anything starts.
    """
    description = plan_run(config, out, fresh, repeats_by_cell, starter.count)
    if repeats_by_cell is None or description.to_do:  # --detect prints its choice itself
        print_beginning(description, console)
    run = RunFolder(out)
    with held(run.path, console):
        if fresh and is_run_folder(run.path):
            _remove_measurements(run)
        _open_manifest(run, description, console, dict(repeats_by_cell or {}), starter)
        download_data(description.config.workload)
        sweep = JobQueue(description.jobs, console, starter)
        results = [job.folder.result() for job in sweep.work_off()]
        return Outcome(tuple(filter(None, results)), sweep.stop, starter.lost)


def _remove_measurements(run: RunFolder) -> None:
    """Remove dpscope's files of the cells in the manifest, and then the manifest."""
    remove_report(run.path)
    for planned in run.manifest().plan:
        remove_written(run.path, run.path / CELLS_NAME / planned.cell.name)
    remove_empty_folders(run.path / CELLS_NAME)
    run.manifest_path.unlink()


def _open_manifest(
    run: RunFolder,
    description: RunPlan,
    console: Console,
    repeats_by_cell: dict[str, int],
    starter: JobStarter,
) -> None:
    """Write the run's manifest if the run is new or is resumed with more repeats or another time
    limit.

    The collectives are timed before it is written, so that predictions of the cells are forecasts.
    """
    manifest = planning.new_manifest(
        description.config,
        description.device_type,
        description.threads,
        description.plan,
        code=Path.cwd(),
    )
    manifest = msgspec.structs.replace(manifest, orders=description.orders)
    hosts = starter.hosts(manifest.environment)
    unlike = planning.hosts_findings(manifest.environment, hosts)
    manifest = msgspec.structs.replace(
        manifest, hosts=hosts, findings=(*manifest.findings, *unlike)
    )
    had = run.manifest() if is_run_folder(run.path) else None
    if had is not None:
        planning.check_comparable(run.path, condition_differences(had, manifest))
    settings = None
    mixed = tuple[Finding, ...]()
    if description.to_do:  # a stored calibration of another machine does not count
        if had is not None:
            mixed = planning.commit_findings(had.environment.commit, manifest.environment.commit)
        stored = first_calibration.of_this_machine(
            first_calibration.stored_calibration(run), manifest.environment
        )
        size = description.model_size
        kind = description.device_type
        settings = first_calibration.plan_calibration(
            description.plan, description.config, kind, size, stored
        )
    failures = first_calibration.calibrate_first(
        run, settings, manifest.environment, console, starter
    )
    if had is None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = msgspec.structs.replace(
            manifest, created_at=now, findings=(*manifest.findings, *failures)
        )
        write_json(run.manifest_path, manifest)
        return
    requested = settings_of(description.config)
    renewed = (PlanCode.CALIBRATION_FAILED.code, PlanCode.MIXED_HOSTS.code)
    findings = (
        *(finding for finding in had.findings if finding.code not in renewed),
        *unlike,
        *mixed,
        *failures,
    )
    updated = msgspec.structs.replace(
        had,
        config=with_settings(had.config, **{name: requested[name] for name in MAY_CHANGE}),
        findings=tuple(dict.fromkeys(findings)),
        repeats_by_cell=repeats_by_cell,
        orders=description.orders,
        published=manifest.published,
        hosts=hosts,
    )
    if updated != had:
        write_json(run.manifest_path, updated)
