"""What trainings show and store while they run: a line per epoch, and train.json. Imports no torch."""

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from dpscope.launch.jobs.progress import SweepProgress
from dpscope.launch.training.planned_jobs import PlannedTrainJob
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.training import TRAIN_SCHEMA_VERSION, EpochRecord, TrainLog, TrainManifest
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.training_folders import TrainFolder


class TrainLogFile:
    """train.json: every epoch of every training of a run folder, in the order of the plan."""

    def __init__(self, folder: TrainFolder, manifest: TrainManifest) -> None:
        """Begins with what earlier calls trained."""
        self._path = folder.log_path
        self._epochs = {
            (one.cell.name, seed): folder.training(one.cell, seed).epochs()
            for seed in manifest.config.seeds
            for one in manifest.plan
        }
        self._findings: list[Finding] = []

    def add(self, findings: Sequence[Finding]) -> None:
        """Findings on all of it."""
        self._findings += findings

    def update(self, job: PlannedTrainJob, records: Sequence[EpochRecord]) -> None:
        """Set the epochs of one training, and write the file."""
        self._epochs[job.cell.name, job.seed] = list(records)
        self.write()

    def write(self) -> None:
        """Write the file, whole or not at all."""
        epochs = tuple(record for records in self._epochs.values() for record in records)
        log = TrainLog(schema_version=TRAIN_SCHEMA_VERSION, epochs=epochs, findings=tuple(self._findings))
        write_json(self._path, log)


class TrainingWatch:
    """Follows one running training by its file of epochs."""

    def __init__(
        self,
        job: PlannedTrainJob,
        epochs: int,
        progress: SweepProgress,
        console: Console,
        on_epochs: Callable[[Sequence[EpochRecord]], None],
    ) -> None:
        """`epochs` is how many there will be; `on_epochs` gets all so far whenever there is a new one."""
        self._job = job
        self._epochs = epochs
        self._progress = progress
        self._console = console
        self._on_epochs = on_epochs
        known = job.folder.epochs()
        self._known = len(known)
        self._last_epoch = known[-1].epoch if known else 0
        self._changed_ns = -1

    def state(self, state: str | None) -> None:
        """Called many times a second with the job's own state: look whether there is a new epoch."""
        records = self._new_records()
        if records:
            for record in records[self._known :]:
                if not self._console.is_terminal:
                    self._console.print(Text(f"{self._job.name} {epoch_line(record, self._epochs)}"), soft_wrap=True)
            self._known, self._last_epoch = len(records), records[-1].epoch
            self._on_epochs(records)
        epoch = min(self._last_epoch + 1, self._epochs)
        self._progress.state(f"epoch {epoch} of {self._epochs}" if state == "training" else state)

    def _new_records(self) -> list[EpochRecord]:
        """All epochs, if their file has changed."""
        path = self._job.folder.epochs_path
        changed_ns = path.stat().st_mtime_ns if path.exists() else -1
        if changed_ns == self._changed_ns:
            return []
        self._changed_ns = changed_ns
        return self._job.folder.epochs()


def epoch_line(record: EpochRecord, epochs: int) -> str:
    """An epoch in one line."""
    return (
        f"epoch {record.epoch}/{epochs}: train loss {_loss(record.train_loss)}, {record.train_accuracy:.2f}%; "
        f"test loss {_loss(record.test_loss)}, {record.test_accuracy:.2f}%; learning rate {record.learning_rate:.4g}; "
        f"{record.train_s:.2f} s, test {record.evaluation_s:.2f} s"
    )


def _loss(loss: float | None) -> str:
    return "NA (not finite)" if loss is None else f"{loss:.4f}"
