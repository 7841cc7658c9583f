"""The trainings of a run folder: their plan, one after another, those that are done kept. Imports no torch."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.attended_job import follow_job, outcome_of, tell_survivors
from dpscope.launch.jobs.job_files import remove_job_files
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.out_folder import locked
from dpscope.launch.jobs.progress import SweepProgress
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import TorchrunJob, end_leftovers
from dpscope.launch.training.manifest import open_train_manifest
from dpscope.launch.training.planned_jobs import PlannedTrainJob, TrainDescription, plan_trainings, print_train_plan
from dpscope.launch.training.progress import TrainingWatch, TrainLogFile
from dpscope.launch.training.resume import take_up, told_place
from dpscope.profiling.mirrors.mirror import TrainingMirror
from dpscope.profiling.mirrors.tensorboard_mirror import events_folder
from dpscope.profiling.records.training import EpochRecord, TrainConfig, TrainManifest, TrainResult
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder
from dpscope.profiling.store.layout import remove_empty_folders, remove_written
from dpscope.profiling.store.ownership import remove_events
from dpscope.profiling.store.training_folders import TRAININGS_NAME, TrainFolder, is_train_folder

_SAVING_GRACE_S = 35.0  # torchrun gives its workers 30 seconds, as Slurm does by default


@dataclass(frozen=True)
class TrainOutcome:
    """How the trainings ended."""

    manifest: TrainManifest
    results: tuple[TrainResult, ...]  # of every planned training that was reached, earlier calls' included
    stop: StopRequest

    @property
    def interrupted(self) -> bool:
        """Whether a signal ended them."""
        return self.stop.requested

    @property
    def exit_status(self) -> int:
        """128 + the number of the signal that ended them, else 0 or 1."""
        return self.stop.exit_status if self.interrupted else int(not self.ok)

    @property
    def ok(self) -> bool:
        """Whether every planned training is trained to its end."""
        return not self.interrupted and all(result.status == "ok" for result in self.results)


def run_trainings(
    config: TrainConfig,
    out: Path,
    fresh: bool,
    console: Console,
    mirrors: Sequence[TrainingMirror] = (),
    resume_from: str | None = None,
) -> TrainOutcome:
    """Train every cell with every seed, seed by seed, but for what is trained already.

    One that was cut short goes on from its last checkpoint, or from what `resume_from` says (see `resumption`). A training
    that fails is recorded as such and the others go on. SIGINT and SIGTERM have the running one save itself, and end it
    with all its processes. Every epoch is at once in train.json, and shown by `mirrors`. Raises DpscopeError for a mistake of the
    user's, before anything is started.
    """
    description = plan_trainings(config, out, fresh, resume_from)
    print_train_plan(description, console)
    folder = TrainFolder(out)

    def note(text: str) -> None:
        console.print(Text(text), soft_wrap=True)

    with locked(out, wait=False, note=note):
        tell_survivors(end_leftovers(RunFolder(out)), console)
        if fresh or not is_train_folder(out):
            _remove_trainings(folder)
        manifest = open_train_manifest(folder, description)
        if description.config.run.download:
            from dpscope.launch.workload.image_sets import download_data

            download_data(description.config.run)
        return _Trainings(folder, manifest, description, console, mirrors).train()


def _remove_trainings(folder: TrainFolder) -> None:
    """Remove what dpscope wrote, the manifest last: without it the rest would be nobody's."""
    for run in events_folder(folder.path).glob("*/*"):
        remove_events(run)
    remove_empty_folders(events_folder(folder.path))
    remove_written(folder.path, folder.path / TRAININGS_NAME)
    folder.log_path.unlink(missing_ok=True)
    folder.manifest_path.unlink(missing_ok=True)


class _Trainings:
    """The jobs of one call, in order."""

    def __init__(
        self,
        folder: TrainFolder,
        manifest: TrainManifest,
        description: TrainDescription,
        console: Console,
        mirrors: Sequence[TrainingMirror],
    ) -> None:
        self._run = RunFolder(folder.path)
        self._manifest = manifest
        self._config = description.config
        self._jobs = description.jobs
        self._console = console
        self._mirrors = mirrors
        self._progress = SweepProgress(console, len(description.jobs))
        self._stop = StopRequest()
        self._log = TrainLogFile(folder, manifest)
        self._took_s: list[float] = []
        self._results: list[TrainResult] = []

    def train(self) -> TrainOutcome:
        """Train what is not trained."""
        self._log.add(self._manifest.findings)
        self._log.write()
        with self._progress, self._stop.listening():
            for index, job in enumerate(self._jobs):
                result = job.folder.result()
                if result is None or not job.done(self._config.epochs):
                    result = self._attempt(index, job)
                self._results.append(result)
                self._log.add(result.findings)
                if self._stop.requested:
                    break
        self._log.write()
        for mirror in self._mirrors:
            mirror.close()
        return TrainOutcome(manifest=self._manifest, results=tuple(self._results), stop=self._stop)

    def _attempt(self, index: int, job: PlannedTrainJob) -> TrainResult:
        """Train, or record why not."""
        job.folder.clear_attempt()
        if job.resumption is not None:
            take_up(job.resumption, job.folder)
        self._progress.start(index + 1, job.name, self._time_left_s(index))
        started_s = time.monotonic()
        outcome = self._run_job(job)
        took_s = time.monotonic() - started_s
        remove_job_files(job.folder.path)
        result = job.folder.result() if outcome.status == "ok" else None
        if result is None:
            result = self._record_failure(job, outcome, took_s)
        else:
            self._took_s.append(took_s)
        self._progress.finish(result.status, took_s, result.message)
        if result.status != "ok":
            self._console.print(Text(f"  its log: {job.folder.log_path}"), soft_wrap=True)
        return result

    def _run_job(self, job: PlannedTrainJob) -> JobOutcome:
        def on_epochs(records: Sequence[EpochRecord]) -> None:
            self._log.update(job, records)
            for mirror in self._mirrors:
                mirror.write(records)

        timeout_s = self._config.run.timeout_s
        watch = TrainingWatch(job, self._config.epochs, self._progress, self._console, on_epochs)
        torchrun = TorchrunJob(job.command, job.folder, self._manifest.threads_per_process, self._run)
        end = follow_job(torchrun, timeout_s, watch.state, self._stop, self._console, _SAVING_GRACE_S)
        watch.state(None)  # the last epoch's file may have come after the last look
        return outcome_of(job.folder, end, timeout_s)

    def _record_failure(self, job: PlannedTrainJob, outcome: JobOutcome, took_s: float) -> TrainResult:
        result = TrainResult(
            cell=job.cell,
            seed=job.seed,
            status=outcome.status,
            epochs=len(job.folder.epochs()),
            duration_s=took_s,
            findings=() if job.resumption is None else job.resumption.findings,
            message=f"{outcome.message}; {told_place(job.folder)}",
            log_tail=outcome.log_tail,
        )
        write_json(job.folder.result_path, result)
        return result

    def _time_left_s(self, index: int) -> float | None:
        """Of this job and those after it: as long each as those that are done took on average."""
        if not self._took_s:
            return None
        left = sum(not job.done(self._config.epochs) for job in self._jobs[index:])
        return left * sum(self._took_s) / len(self._took_s)
