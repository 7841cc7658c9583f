"""The trainings of a run folder, one after another: manifest, progress, results. Imports no
torch.
"""

import contextlib
import importlib.metadata
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import msgspec
from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.assignment import Assignment
from dpscope.launch.jobs.job_queue import THIS_HOST, JobQueue, JobStarter, Outcome, Watch, held
from dpscope.launch.jobs.out_folder import locked
from dpscope.launch.learning.train_plan import (
    TrainJob,
    TrainPlan,
    load_train_config,
    plan_trainings,
    print_train_plan,
)
from dpscope.launch.planning.manifest import check_comparable, hosts_findings
from dpscope.launch.workload.data_files import download_data
from dpscope.profiling.machine.conditions import machine_differences
from dpscope.profiling.machine.environment import collect_environment, machine_findings
from dpscope.profiling.machine.nvml import open_nvml
from dpscope.profiling.mirrors.mirror import TrainingMirror
from dpscope.profiling.mirrors.tensorboard_mirror import events_folder
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.training import (
    TRAIN_SCHEMA_VERSION,
    EpochRecord,
    TrainConfig,
    TrainLog,
    TrainManifest,
    TrainResult,
)
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import remove_empty_folders, remove_written
from dpscope.profiling.store.ownership import remove_events
from dpscope.profiling.store.shown_text import complain
from dpscope.profiling.store.training_folders import TRAININGS_NAME, TrainFolder, is_train_folder


def open_train_manifest(
    folder: TrainFolder, description: TrainPlan, starter: JobStarter = THIS_HOST
) -> TrainManifest:
    """The folder's manifest, written for new trainings or with added seeds or epochs.

    Raises DpscopeError if the trainings began on another machine.
    """
    kind = description.device_type
    config = description.config
    on_gpus = kind == "cuda"
    environment = collect_environment(open_nvml() if on_gpus else None, on_gpus, code=Path.cwd())
    hosts = starter.hosts(environment)
    findings = (
        *machine_findings(environment, kind, config.matrix.most_on_a_node),
        *hosts_findings(environment, hosts),
        *description.findings,
    )
    if is_train_folder(folder.path):
        begun = folder.manifest()
        check_comparable(folder.path, machine_differences(begun.environment, environment))
        seeds = tuple(dict.fromkeys((*begun.config.seeds, *config.seeds)))
        config = msgspec.structs.replace(config, seeds=seeds)
        manifest = msgspec.structs.replace(begun, config=config, findings=findings, hosts=hosts)
    else:
        manifest = TrainManifest(
            schema_version=TRAIN_SCHEMA_VERSION,
            dpscope_version=importlib.metadata.version("dpscope"),
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            config=config,
            device_type=kind,
            threads_per_process=description.threads,
            environment=environment,
            plan=description.plan,
            findings=findings,
            hosts=hosts,
        )
    write_json(folder.manifest_path, manifest)
    return manifest


def begin_trainings(assignment: Assignment) -> None:
    """Write the manifest of trainings of which one is started by hand, unless it is there; raises
    DpscopeError as `plan_trainings` does.
    """
    out = assignment.folder
    options = dict(assignment.options or {})
    config = load_train_config(Path(assignment.config) if assignment.config else None, options)
    plan_trainings(config, out, nodes=assignment.nodes)  # mistakes, before anything is written
    with locked(out, wait=True, note=complain):
        description = plan_trainings(config, out, nodes=assignment.nodes)
        open_train_manifest(TrainFolder(out), description)


def run_trainings(
    config: TrainConfig,
    out: Path,
    fresh: bool,
    console: Console,
    mirrors: Sequence[TrainingMirror] = (),
    starter: JobStarter = THIS_HOST,
) -> Outcome[TrainResult]:
    """Train every cell with every seed, seed by seed, except what is trained already.

    An interrupted training continues after its last whole epoch. A training that fails is recorded,
    and the others follow. SIGINT and SIGTERM end the running one. Every epoch is written to
    train.json and to `mirrors` at once. `starter` starts the jobs on its nodes. Raises DpscopeError
    for a mistake of the user before anything starts.
    """
    description = plan_trainings(config, out, fresh, starter.count)
    print_train_plan(description, console)
    folder = TrainFolder(out)
    with held(out, console), contextlib.ExitStack() as stack:
        if fresh and is_train_folder(out):
            _remove_trainings(folder)
        manifest = open_train_manifest(folder, description, starter)
        download_data(description.config.workload)
        progress = _Progress(folder, manifest, console, mirrors)
        progress.write()
        for mirror in mirrors:
            stack.callback(mirror.close)  # in any case, so that nothing written is lost
        trainings = JobQueue(description.jobs, console, starter, progress.watch)
        results = []
        for job in trainings.work_off():
            if (result := job.folder.result()) is not None:
                results.append(result)
                progress.write(result.findings)
        return Outcome(tuple(results), trainings.stop, starter.lost)


def _remove_trainings(folder: TrainFolder) -> None:
    """Remove dpscope's files of the cells in the manifest, and then the manifest."""
    for run in events_folder(folder.path).glob("*/*"):
        remove_events(run)
    remove_empty_folders(events_folder(folder.path))
    for planned in folder.manifest().plan:
        remove_written(folder.path, folder.path / TRAININGS_NAME / planned.cell.name)
    remove_empty_folders(folder.path / TRAININGS_NAME)
    folder.log_path.unlink(missing_ok=True)
    folder.manifest_path.unlink()


class _Progress:
    """Shows every epoch as it ends, on the console, in train.json and in the mirrors."""

    def __init__(
        self,
        folder: TrainFolder,
        manifest: TrainManifest,
        console: Console,
        mirrors: Sequence[TrainingMirror],
    ) -> None:
        self._console = console
        self._mirrors = mirrors
        self._log_path = folder.log_path
        self._folders = [
            folder.training(training.cell, seed)
            for seed in manifest.config.seeds
            for training in manifest.plan
        ]
        self._findings = list(manifest.findings)

    def write(self, findings: Sequence[Finding] = ()) -> None:
        """Write the epochs of all trainings so far, in the order of the plan."""
        self._findings += findings
        epochs = tuple(chain.from_iterable(folder.epochs() for folder in self._folders))
        write_json(self._log_path, TrainLog(TRAIN_SCHEMA_VERSION, epochs, tuple(self._findings)))

    def watch(self, job: TrainJob) -> Watch:
        epochs = job.config.epochs
        path = job.folder.epochs_path
        shown = job.trained_epochs
        changed_ns = _changed_ns(path)

        def look(state: str | None) -> str | None:
            """Show new epochs in the training's file, if that has changed."""
            nonlocal shown, changed_ns
            now_ns = _changed_ns(path)
            if now_ns != changed_ns:
                records = job.folder.epochs()
                if not self._console.is_terminal:
                    for record in records[shown:]:
                        line = f"{job.name} {_epoch_line(record, epochs)}"
                        self._console.print(Text(line), soft_wrap=True)
                shown = len(records)
                changed_ns = now_ns
                self.write()
                for mirror in self._mirrors:
                    mirror.write(records)
            return f"epoch {min(shown + 1, epochs)} of {epochs}" if state == "training" else state

        return look


def _changed_ns(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def _epoch_line(record: EpochRecord, epochs: int) -> str:
    losses = (record.train_loss, record.test_loss)
    train, test = ("NA (not finite)" if loss is None else f"{loss:.4f}" for loss in losses)
    return (
        f"epoch {record.epoch}/{epochs}: train loss {train}, {record.train_accuracy:.2f}%; "
        f"test loss {test}, {record.test_accuracy:.2f}%; learning rate {record.learning_rate:.4g}; "
        f"{record.train_s:.2f} s, test {record.evaluation_s:.2f} s"
    )
