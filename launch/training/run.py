"""The trainings of a run folder: their plan, one after another, those that are done kept. Imports no torch."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.job_queue import JobQueue, Outcome, held
from dpscope.launch.jobs.starting import THIS_HOST, JobStarter
from dpscope.launch.planning.manifest import most_on_several_nodes
from dpscope.launch.training.manifest import open_train_manifest
from dpscope.launch.training.planned_jobs import PlannedTrainJob, TrainDescription, plan_trainings, print_train_plan
from dpscope.launch.training.progress import TrainingWatch, TrainLogFile
from dpscope.launch.training.resume import describe_saved_state, restore_progress
from dpscope.launch.workload.data_files import download_data
from dpscope.profiling.mirrors.mirror import TrainingMirror
from dpscope.profiling.mirrors.tensorboard_mirror import events_folder
from dpscope.profiling.records.training import EpochRecord, TrainConfig, TrainManifest, TrainResult
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder
from dpscope.profiling.store.layout import remove_empty_folders, remove_written
from dpscope.profiling.store.ownership import remove_events
from dpscope.profiling.store.training_folders import TRAININGS_NAME, TrainFolder, is_train_folder

_SAVING_GRACE_S = 35.0  # torchrun gives its workers 30 seconds, as Slurm does by default


def run_trainings(
    config: TrainConfig,
    out: Path,
    fresh: bool,
    console: Console,
    mirrors: Sequence[TrainingMirror] = (),
    resume_from: str | None = None,
    starter: JobStarter = THIS_HOST,
) -> Outcome[TrainManifest, TrainResult]:
    """Train every cell with every seed, seed by seed, but for what is trained already.

    One that was cut short goes on from its last checkpoint, or from what `resume_from` says (see `resumption`). A training
    that fails is recorded as such and the others go on. SIGINT and SIGTERM have the running one save itself, and end it
    with all its processes. Every epoch is at once in train.json, and shown by `mirrors`. `starter` starts the jobs, over its
    nodes. Raises DpscopeError for a mistake of the
    user's, before anything is started.
    """
    description = plan_trainings(config, out, fresh, resume_from, starter.count)
    print_train_plan(description, console)
    folder = TrainFolder(out)

    starter.check_gpus(most_on_several_nodes(job.cell for job in description.jobs))
    with held(out, console, starter):
        if fresh and is_train_folder(out):
            _remove_trainings(folder)
        manifest = open_train_manifest(folder, description, starter)
        download_data(description.config.workload)
        trainings = _Trainings(folder, manifest, description, console, mirrors, starter)
        results = trainings.train()
        return Outcome(manifest=manifest, results=results, stop=trainings.stop, lost=starter.lost)


def _remove_trainings(folder: TrainFolder) -> None:
    """Remove what dpscope wrote of the cells that the manifest records, the manifest last: nothing is removed without it."""
    for run in events_folder(folder.path).glob("*/*"):
        remove_events(run)
    remove_empty_folders(events_folder(folder.path))
    for planned in folder.manifest().plan:
        remove_written(folder.path, folder.path / TRAININGS_NAME / planned.cell.name)
    remove_empty_folders(folder.path / TRAININGS_NAME)
    folder.log_path.unlink(missing_ok=True)
    folder.manifest_path.unlink()


class _Trainings(JobQueue[PlannedTrainJob, TrainResult]):
    """The jobs of one call."""

    def __init__(
        self,
        folder: TrainFolder,
        manifest: TrainManifest,
        description: TrainDescription,
        console: Console,
        mirrors: Sequence[TrainingMirror],
        starter: JobStarter,
    ) -> None:
        timeout_s, threads = description.config.timeout_s, manifest.threads_per_process
        run = RunFolder(folder.path)
        super().__init__(run, description.jobs, threads, timeout_s, console, _SAVING_GRACE_S, starter)
        self._epochs = description.config.epochs
        self._mirrors = mirrors
        self._log = TrainLogFile(folder, manifest)
        self._log.add(manifest.findings)
        self._took_s: list[float] = []

    def train(self) -> tuple[TrainResult, ...]:
        """Train what is not trained."""
        self._log.write()
        results = []
        with contextlib.ExitStack() as shown:
            for mirror in self._mirrors:
                shown.callback(mirror.close)  # however this ends: what was shown is not lost
            for result in self.work_off():
                results.append(result)
                self._log.add(result.findings)
        self._log.write()
        return tuple(results)

    def finished(self, job: PlannedTrainJob) -> TrainResult | None:
        return job.folder.result() if job.done(self._epochs) else None

    def prepare(self, job: PlannedTrainJob) -> None:
        job.folder.clear_attempt()
        if job.resumption is not None:
            restore_progress(job.resumption, job.folder)

    def watch(self, job: PlannedTrainJob) -> Callable[[str | None], None]:
        def on_epochs(records: Sequence[EpochRecord]) -> None:
            self._log.update(job, records)
            for mirror in self._mirrors:
                mirror.write(records)

        return TrainingWatch(job, self._epochs, self.progress, self.console, on_epochs).state

    def store(self, job: PlannedTrainJob, outcome: JobOutcome, took_s: float) -> TrainResult:
        result = job.folder.result() if outcome.status == "ok" else None
        if result is None:
            return self._record_failure(job, outcome, took_s)
        self._took_s.append(took_s)
        return result

    def _record_failure(self, job: PlannedTrainJob, outcome: JobOutcome, took_s: float) -> TrainResult:
        result = TrainResult(
            cell=job.cell,
            seed=job.seed,
            status=outcome.status,
            epochs=len(job.folder.epochs()),
            duration_s=took_s,
            findings=() if job.resumption is None else job.resumption.findings,
            message=f"{outcome.message}; {describe_saved_state(job.folder)}",
            log_tail=outcome.log_tail,
        )
        write_json(job.folder.result_path, result)
        return result

    def time_left_s(self, index: int) -> float | None:
        """As long each as those that are done took on average."""
        if not self._took_s:
            return None
        left = sum(not job.done(self._epochs) for job in self.jobs[index:])
        return left * sum(self._took_s) / len(self._took_s)
