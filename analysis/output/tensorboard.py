"""A run as TensorBoard shows it: HParams, Scalars, Text, Images, and trace copies for torch-tb-profiler.

runs/<run>/tensorboard/report/    the comparison and findings as text, the figures as images
runs/<run>/tensorboard/training/  the curves of trainings, one run per cell and seed (profiling/mirrors/tensorboard_mirror.py)
runs/<run>/tensorboard/<cell>/    one session: hyperparameters, metrics, step times; the traces of its first repeat
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from dpscope.analysis.figures import draw as figures
from dpscope.analysis.figures.training import training_figures
from dpscope.analysis.output.plugin_traces import traces_of, write_plugin_copies
from dpscope.analysis.report.build import Report, render_markdown
from dpscope.analysis.report.training_report import training_markdown
from dpscope.analysis.runs.cell_data import CellData
from dpscope.analysis.training.data import TrainingData
from dpscope.profiling.mirrors.mirror import TEST_ACCURACY, TEST_LOSS, TRAINED_S, training_settings
from dpscope.profiling.mirrors.tensorboard_mirror import (
    EventLog,
    HyperParameter,
    events_folder,
    training_events,
    training_folder,
)
from dpscope.profiling.records.training import EpochRecord
from dpscope.profiling.store.layout import remove_empty_folders
from dpscope.profiling.store.ownership import TENSORBOARD_NAME, check_events, check_training_events, remove_events
from dpscope.profiling.store.training_folders import TrainFolder

DOTS_PER_INCH = 150  # of figures.to_png
METRICS = {  # tag -> column of the comparison and what it is divided by
    "step_ms": ("step_us", 1e3),
    "samples_per_s": ("samples_per_s", 1.0),
    "exposed_ms": ("exposed_us", 1e3),
    "busbw_gb_per_s": ("busbw_gb_per_s", 1.0),
}

TRACED_METRICS = {
    "traced_step_ms": ("traced_step_us", 1e3),
    **{name: METRICS[name] for name in ("exposed_ms", "busbw_gb_per_s")},
}
TRAINING_METRICS = (TEST_ACCURACY, TEST_LOSS, TRAINED_S)
"""Tags that HParams shows next to a training's settings, each at its last epoch."""


def export_tensorboard(report: Report, out: Path | None = None) -> Path:
    """Replace the run's TensorBoard folder except for the curves of trainings, which may be running; returns it.

    It lies in the run's folder; that of traces, which have none, in `out`.
    """
    names = [data.cell.name for data in report.run.measured]
    folder = _cleared(out or report.run.folder.path, names)
    sessions = {data.cell.name: _hyperparameters(report, data) for data in report.run.measured}
    _write_report(report, folder / "report", list(sessions.values()))
    for data in report.run.measured:
        row = report.comparison.rows[data.cell.name]
        metrics = {
            tag: value / divisor
            for tag, (column, divisor) in _metrics(report).items()
            if (value := row.number(column)) is not None
        }
        _write_cell(report, data, folder / data.cell.name, sessions[data.cell.name], metrics)
    if report.run.training:
        write_missing_events(report.run.training)
    return folder


def _metrics(report: Report) -> dict[str, tuple[str, float]]:
    return METRICS if report.run.recorded is not None else TRACED_METRICS


def export_trainings(data: TrainingData) -> Path:
    """The same for a folder that holds trainings alone."""
    folder = _cleared(data.folder, [])
    with EventLog(folder / "report") as log:
        log.experiment(_values(training_sessions(data)), TRAINING_METRICS)
        log.text("training", training_markdown(data))
        _add_figures(log, training_figures(data))
    write_missing_events(data)
    return folder


def _cleared(run: Path, cells: Sequence[str]) -> Path:
    """A run's TensorBoard folder, rid of everything that dpscope writes here.

    Raises DpscopeError, before anything is removed, where something else has a name that is to be written.
    """
    folder = run / TENSORBOARD_NAME
    check_training_events(run)
    for name in ("report", *cells):
        check_events(folder / name)
    for path in folder.iterdir() if folder.exists() else ():
        if path != events_folder(run) and path.is_dir() and not path.is_symlink():
            remove_events(path)
    remove_empty_folders(folder)
    return folder


def _values(sessions: Sequence[Mapping[str, HyperParameter]]) -> dict[str, list[HyperParameter]]:
    """Each hyperparameter with the values it takes."""
    names = dict.fromkeys(name for session in sessions for name in session)
    return {name: [session[name] for session in sessions if name in session] for name in names}


def _add_figures(log: EventLog, drawn: Mapping[str, Figure]) -> None:
    for name, figure in drawn.items():
        width, height = (round(inches * DOTS_PER_INCH) for inches in figure.get_size_inches())
        log.image(name, figures.to_png(figure), int(width), int(height))


def _hyperparameters(report: Report, data: CellData) -> dict[str, HyperParameter]:
    recorded, cell = report.run.recorded, data.cell
    if recorded is None:
        return {"strategy": cell.strategy, "devices": cell.devices, "variant": "traces", "batch_size": "unknown"}
    config = recorded.config
    return {
        "strategy": cell.strategy,
        "devices": cell.devices,
        "batch_size": cell.batch_size,
        "model": config.workload.model,
        "amp": config.workload.amp,
        "variant": cell.variant or "none",
    }


def _write_report(report: Report, folder: Path, sessions: list[dict[str, HyperParameter]]) -> None:
    with EventLog(folder) as log:
        training = report.run.training
        trained = training_sessions(training) if training else []
        log.experiment(_values([*sessions, *trained]), [*_metrics(report), *(TRAINING_METRICS if trained else ())])
        log.text("comparison", render_markdown(report))
        _add_figures(log, report.figures)


def _write_cell(
    report: Report, data: CellData, folder: Path, session: dict[str, HyperParameter], metrics: dict[str, float]
) -> None:
    with EventLog(folder) as log:
        log.session(session, metrics)
        steps = np.concatenate(data.step_samples() or [np.empty(0)])
        for index, step_us in enumerate(steps):
            log.scalar("timed_step_ms", float(step_us) / 1e3, index)
    for one in report.run.traces:
        write_plugin_copies(one.path, folder, 0, one.rank or 0)
    if report.run.recorded is None:
        return
    for _, repeat in report.run.folder.done_repeats(data.planned)[:1]:
        for trace in traces_of(repeat.path / "traces"):
            node, rank = (int(part) for part in trace.name.partition(".")[0].split("_"))
            write_plugin_copies(trace, folder, node, rank)


def training_sessions(data: TrainingData) -> list[dict[str, HyperParameter]]:
    """The settings of every training; none for a train.json of another program, which does not hold them."""
    config = data.manifest.config if data.manifest else None
    return [training_settings(epochs[0], config) for epochs in _stored_epochs(data)]


def write_missing_events(data: TrainingData) -> None:
    """Write the curves of those trainings that TensorBoard's folder does not have."""
    log = training_events(data.folder, data.manifest.config if data.manifest else None)
    for epochs in _stored_epochs(data):
        if not training_folder(data.folder, epochs[0]).exists():
            log.write(epochs)
    log.close()


def _stored_epochs(data: TrainingData) -> list[list[EpochRecord]]:
    """The epochs of each training as dpscope stored them."""
    if data.manifest is None:
        return []
    epochs = TrainFolder(data.folder).log().epochs
    ordered = sorted(epochs, key=lambda record: (record.cell, record.seed, record.epoch))
    return [list(group) for _, group in groupby(ordered, key=lambda record: (record.cell, record.seed))]
