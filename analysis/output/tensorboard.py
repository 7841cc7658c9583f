"""A run as TensorBoard shows it: HParams, Scalars, Text, Images, and trace copies for
torch-tb-profiler.

runs/<run>/tensorboard/report/    the comparison and findings as text, the figures as images
runs/<run>/tensorboard/training/  the curves of trainings, one run per cell and seed
(profiling/mirrors/tensorboard_mirror.py) runs/<run>/tensorboard/<cell>/    one session:
hyperparameters, metrics, step times; the traces of its first repeat

Trace copies are what torch-tb-profiler reads correctly. Its 0.4.3 (the last) ignores kernel names:
a kernel is communication only if its External id equals that of an `nccl:` annotation, which no
current trace satisfies, and it takes the annotations' own time (of asking) as communication. In a
copy every communication kernel gets its own annotation with its time, and a fresh External id that
both and the runtime call share. Of a process that drives several devices one copy per device is
made, since the plugin pools devices.
"""

import copy
import json
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from isal import igzip, igzip_lib
from matplotlib.figure import Figure

from dpscope.analysis.cells.row import CellRow
from dpscope.analysis.cells.view import REGISTERED
from dpscope.analysis.figures import draw as figures
from dpscope.analysis.output.run_screen import Targets, report_of
from dpscope.analysis.output.traces_screen import read_jobs, report_of_traces
from dpscope.analysis.report.build import Report, render_markdown
from dpscope.analysis.report.comparison_tables import FIRST_COLUMNS
from dpscope.analysis.report.training_report import training_markdown
from dpscope.analysis.text.units import Unit
from dpscope.analysis.traces.merge.kineto_files import kineto_files
from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.readers import find_traces
from dpscope.analysis.traces.ranks.trace_analysis import require_one
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.analysis.traces.reading.event_columns import copy_name
from dpscope.analysis.traces.reading.event_table import (
    CATEGORIES,
    DEVICE_ANNOTATION,
    DEVICE_WORK,
    Category,
    category_of,
    is_annotation,
)
from dpscope.analysis.traces.reading.nsys_database import is_export
from dpscope.analysis.traces.steps.event_kind import (
    collective_kind,
    is_collective_kernel,
    is_peer_copy,
)
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.profiling.mirrors.mirror import (
    MEANINGS,
    TEST_ACCURACY,
    TEST_LOSS,
    TRAINED_S,
    training_settings,
)
from dpscope.profiling.mirrors.tensorboard_mirror import (
    EventLog,
    HyperParameter,
    events_folder,
    training_events,
    training_folder,
)
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.training import EpochRecord
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path, natural_order
from dpscope.profiling.store.folders import is_run_folder, remove_empty_folders
from dpscope.profiling.store.ownership import (
    TENSORBOARD_NAME,
    check_events,
    check_training_events,
    remove_events,
)
from dpscope.profiling.store.training_folders import TrainFolder, holds_epochs

DISTRIBUTED_VIEW = (
    "**PyTorch Profiler's Distributed view and the report.** The view has the same whole steps, of the first repeat alone; the "
    "report's numbers are means over all repeats. The view counts what ranks wait for a broadcast or a reduce as its data "
    "transfer, and waiting behind compute as waiting; the report's wait and transfer are exposed, and broadcasts and reduces "
    "have neither. A collective whose size the trace does not record has size 0 in the view. The HParams page has the report's "
    "numbers."
)
"""What the view cannot show as the report does, for TensorBoard's Text page."""
_TIMED_STEP = "Untraced step by its number, mean over ranks"
_UNITS = {
    # as on every screen
    "time": Unit("ms", 1e3, 3),
    "share": Unit("%", 0.01, 1),
}
"""Of HParams' columns, by quantity; others have the stored unit."""
TRAINING_METRICS = {tag: MEANINGS[tag] for tag in (TEST_ACCURACY, TEST_LOSS, TRAINED_S)}
"""What HParams shows next to a training's settings, each at its last epoch: meanings by tag."""


def write_tensorboard(
    paths: Sequence[Path], link: LinkRate | None, out: Path | None = None
) -> Path:
    """Write the TensorBoard folder of a run, of trainings alone, or of traces; returns it.

    That of traces lies in `out`, or in a folder next to them with their name. Raises DpscopeError
    for traces of several jobs, and for a damaged one.
    """
    path = paths[0]
    if is_run_folder(path):
        return export_tensorboard(report_of(path, Targets(link)))
    if holds_epochs(path):
        return export_trainings(load_training(path))
    files = find_traces(paths)
    # the plugin reads torch.profiler's format alone
    if any(map(is_export, files)):
        place = out or path.absolute().with_name(f"{path.name}-dpscope")
        with kineto_files(files, DEFAULT_LIMITS, place.parent) as (written, _):
            return write_tensorboard(written, link, place)
    jobs = read_jobs(paths)
    require_one(jobs, "a TensorBoard folder")
    (analysis,) = jobs.values()
    if analysis.cut_short:
        raise DpscopeError(
            f"{analysis.cut_short[0]} is cut short or damaged: TensorBoard would hide that; trace again"
        )
    report = report_of_traces(analysis, paths, Targets(link))
    place = report.run.path.absolute()
    return export_tensorboard(report, out or place.with_name(f"{place.name}-dpscope"))


def export_tensorboard(report: Report, out: Path | None = None) -> Path:
    """Replace the run's TensorBoard folder except for the curves of trainings, which may be
    running; returns it.

    It lies in the run's folder; that of traces, which have none, in `out`.
    """
    measured, training = report.run.measured, report.run.training
    folder = _cleared(out or report.run.folder.path, [data.name for data in measured])
    columns = [name for name in FIRST_COLUMNS if report.comparison.has(name)]
    meanings = {metric(name): REGISTERED[name].meaning for name in columns}
    sessions = {data.name: _hyperparameters(report, data) for data in measured}
    with EventLog(folder / "report") as log:
        trained = training_sessions(training) if training else []
        metrics = meanings | TRAINING_METRICS if trained else meanings
        log.experiment(_values([*sessions.values(), *trained]), metrics)
        log.text("comparison", render_markdown(report))
        log.text("distributed_view", DISTRIBUTED_VIEW)
        _add_figures(log, report.figures)
    for data in measured:
        row = report.comparison.rows[data.name]
        values = {metric(name): shown_value(row, name) for name in columns}
        # HParams shows nothing for a metric without a value
        known = {tag: value for tag, value in values.items() if value is not None}
        with EventLog(folder / data.name) as log:
            log.session(sessions[data.name], known, meanings)
            _write_steps(log, data)
        _write_traces(report, data, folder / data.name)
    if training:
        write_missing_events(training)
    return folder


def metric(column: str) -> str:
    """A column's tag, by its heading and unit, such as ``report/traced step [ms]``."""
    declared = REGISTERED[column]
    unit = _UNITS.get(declared.quantity)
    label = f" [{unit.label}]" if unit else ""
    return f"report/{declared.heading}{label}"


def shown_value(row: CellRow, column: str) -> float | None:
    """A cell's value in the unit of its tag."""
    value = row.number(column)
    quantity = REGISTERED[column].quantity
    unit = _UNITS.get(quantity)
    if unit is None or value is None:
        return value
    return value / unit.divisor


def export_trainings(data: TrainingData) -> Path:
    """The same for a folder that holds trainings alone."""
    folder = _cleared(data.folder, [])
    with EventLog(folder / "report") as log:
        log.experiment(_values(training_sessions(data)), TRAINING_METRICS)
        log.text("training", training_markdown(data))
        _add_figures(log, figures.draw_training(data))
    write_missing_events(data)
    return folder


def _cleared(run: Path, cells: Sequence[str]) -> Path:
    """A run's TensorBoard folder, rid of everything that dpscope writes here.

    Raises DpscopeError, before anything is removed, where something else has a name that is to be
    written.
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
        dots = figure.bbox  # at the dots per inch of PNG
        png = figures.saved(figure, "png")
        caption = figures.caption_of(name, figure)
        width = int(dots.width)
        height = int(dots.height)
        log.image(name, png, width, height, caption)


def _hyperparameters(report: Report, data: Job) -> dict[str, HyperParameter]:
    recorded = report.run.recorded
    shape: dict[str, HyperParameter] = {"strategy": data.strategy, "devices": data.devices}
    if recorded is None:
        return shape | {"variant": "traces", "batch_size": "unknown"}
    workload = recorded.config.workload
    shape |= {"batch_size": data.cell.batch_size, "model": workload.model, "amp": workload.amp}
    return shape | {"variant": data.variant or "none"}


def _write_traces(report: Report, data: Job, folder: Path) -> None:
    """Copies of a cell's traces for the plugin, of its first repeat."""
    for file in report.run.traces:
        write_plugin_copies(file.path, folder, 0, file.rank or 0, _not_whole(data, 0, file.rank))
    if report.run.recorded is None:
        return
    for number, repeat in report.run.folder.done_repeats(data.cell)[:1]:
        for trace in sorted((repeat.path / "traces").glob("*.pt.trace.json.gz"), key=natural_order):
            node, rank = (int(part) for part in trace.name.partition(".")[0].split("_"))
            write_plugin_copies(trace, folder, node, rank, _not_whole(data, number, rank))


def _write_steps(log: EventLog, data: Job) -> None:
    """Write a series for each repeat, with each timed step at its number.

    Each repeat is a series, since each one begins at step 0.
    """
    timed = data.tables.samples.having("measuring_pass", "timed")
    repeats = sorted(set(timed["repeat"].tolist()))
    for repeat, steps_us in zip(repeats, data.step_samples(), strict=True):
        for step, step_us in enumerate(steps_us):
            step_ms = float(step_us) / 1e3
            log.scalar(f"timed step [ms]/repeat {repeat}", step_ms, step, _TIMED_STEP)


def _not_whole(data: Job, repeat: int, rank: int | None) -> frozenset[int]:
    """The steps of a trace that the report leaves out of its means; none where it has no others."""
    numbers = []
    for steps in (data.tables.steps, data.whole_windows):
        of_repeat = steps["repeat"] == repeat
        own = steps.take(of_repeat & steps.known("step"))
        if rank is not None:
            own = own.take(own["rank"] == rank)
        numbers.append(frozenset(own["step"].tolist()))
    every, whole = numbers
    if not whole:
        return frozenset()
    return every - whole


def training_sessions(data: TrainingData) -> list[dict[str, HyperParameter]]:
    """The settings of every training; none for a train.json of another program, which does not hold
    them.
    """
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
    return [
        list(group) for _, group in groupby(ordered, key=lambda record: (record.cell, record.seed))
    ]


_STEP = "ProfilerStep#"
_UNREADABLE = (OSError, ValueError, EOFError, RecursionError, igzip_lib.IsalError)
_JsonEvent = dict[str, Any]

_CATEGORIES = {
    name: "runtime" for name, category in CATEGORIES.items() if category is Category.RUNTIME
}
_CATEGORIES["fwdbwd"] = "forward_backward"
# Of the plugin's five names; other collectives are shown under the one that moves data likewise.
_PLUGIN_KINDS = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")


def write_plugin_copies(
    trace: Path, folder: Path, node: int, rank: int, not_whole: Collection[int] = ()
) -> list[Path]:
    """Write the copies of one trace as `<node>_<rank>.pt.trace.json.gz`; of a process with devices
    0..n as `<node>_<device>`.

    The steps that are `not_whole` are none for the plugin.
    """
    loaded = _load(trace)
    works = (
        event for event in loaded["traceEvents"] if category_of(event.get("cat")) in DEVICE_WORK
    )
    devices = sorted({_device(event) for event in works})
    copies = {device: device for device in devices} if len(devices) > 1 else {rank: None}
    written = []
    for name, device in copies.items():
        path = folder / f"{node}_{name}.pt.trace.json.gz"
        with atomic_path(path) as temporary, igzip.open(temporary, "wb") as file:  # type: ignore[no-untyped-call]
            file.write(json.dumps(plugin_copy(loaded, device, not_whole)).encode())
        written.append(path)
    return written


def plugin_copy(
    trace: dict[str, Any], device: int | None = None, not_whole: Collection[int] = ()
) -> dict[str, Any]:
    """The trace as the plugin needs it; with `device`, of what occupies that device only. The
    original is not changed.
    """
    hidden = {f"{_STEP}{number}" for number in not_whole}
    events = [
        copy.copy(event)
        for event in trace["traceEvents"]
        if device is None
        or category_of(event.get("cat")) not in DEVICE_WORK
        or _occupies(event, device)
    ]
    fresh_id = 1 + max((_external_id(event) for event in events), default=0)
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in _CATEGORIES and "correlation" in event.get("args", {})
    }
    hidden_steps = [event for event in events if event.get("name") in hidden]
    annotations = []
    for event in events:
        arguments = event.get("args", {})
        launch = launches.get(arguments.get("correlation"))
        began = launch or event
        of_no_step = any(_begins_in(began, step) for step in hidden_steps)
        category = event.get("cat")
        if category in _CATEGORIES:
            event["cat"] = _CATEGORIES[category]
        elif role := _without_role(event, hidden, of_no_step):
            event["name"] = f"{role} {event['name']}"
        elif _communicates(event) and not of_no_step:
            event["args"] = {**arguments, "External id": fresh_id}
            annotations.append(_annotation(event, fresh_id))
            if launch is not None:
                launch["args"] = {**launch["args"], "External id": fresh_id}
            fresh_id += 1
    distributed = trace.get("distributedInfo")
    extra = (
        {"distributedInfo": {**distributed, "rank": device}}
        if isinstance(distributed, dict) and device
        else {}
    )
    return {**trace, **extra, "traceEvents": events + annotations}


def _without_role(event: _JsonEvent, hidden: Collection[str], of_no_step: bool) -> str:
    """What comes before the name of an event that the plugin is not to take for what it is called;
    empty for others.
    """
    name, category = str(event.get("name")), event.get("cat")
    if category == DEVICE_ANNOTATION and name.startswith(_STEP):
        return "device"  # the plugin would take it for a separate step
    if name in hidden:
        return "part of"
    if not is_annotation(category):
        return ""
    # the time around NCCL's is no communication; gloo's is
    if name.startswith("nccl:") or (of_no_step and name.startswith("gloo:")):
        return "range of"
    return ""


def _begins_in(event: _JsonEvent, step: _JsonEvent) -> bool:
    """Whether an event begins in the step's range on the host."""
    after_us = event.get("ts", -1.0) - step.get("ts", 0.0)
    return bool(0 <= after_us < step.get("dur", 0.0))


def _communicates(event: _JsonEvent) -> bool:
    name, category = str(event.get("name")), category_of(event.get("cat"))
    if category is Category.KERNEL:
        return is_collective_kernel(name)
    return category is Category.MEMCPY and is_peer_copy(
        copy_name(name, event.get("args", {}).get("copy kind"))
    )


def _annotation(event: _JsonEvent, external_id: int) -> _JsonEvent:
    args = event["args"]
    kind = collective_kind(str(args.get("Collective name") or event["name"]))
    elements = args.get("In msg nelems") or (args.get("bytes") or 0) // 4
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": f"nccl:{kind if kind in _PLUGIN_KINDS else 'all_gather'}",
        **{name: event.get(name) for name in ("pid", "tid", "ts", "dur")},
        "args": {"External id": external_id, "Input Dims": [[elements]], "Input type": ["float"]},
    }


def _occupies(event: _JsonEvent, device: int) -> bool:
    """Whether it runs on a device, or is a copy between devices with this one at its other end."""
    args = event.get("args", {})
    return _device(event) == device or (
        _communicates(event) and device in (args.get("fromDevice"), args.get("toDevice"))
    )


def _device(event: _JsonEvent) -> int:
    args = event.get("args", {})
    values = (args.get("device"), args.get("inDevice"), event.get("pid"))
    return next((value for value in values if isinstance(value, int)), 0)


def _external_id(event: _JsonEvent) -> int:
    value = (
        event.get("args", {}).get("External id") if isinstance(event.get("args"), dict) else None
    )
    return value if isinstance(value, int) else 0


def _load(path: Path) -> dict[str, Any]:
    """The whole trace as plain data; raises DpscopeError when it is damaged: a copy must not hide
    that.
    """
    try:
        raw = path.read_bytes()
        text = igzip.decompress(raw) if path.suffix == ".gz" else raw  # type: ignore[no-untyped-call]
        loaded = json.loads(text.decode("utf-8", errors="replace"), strict=False)
    except _UNREADABLE as error:  # type: ignore[misc]  # isal's stubs call its error a plain object
        raise DpscopeError(
            f"{path} cannot be copied for TensorBoard: {error}; trace again"
        ) from error
    if not isinstance(loaded, dict) or not isinstance(loaded.get("traceEvents"), list):
        raise DpscopeError(f'{path} cannot be copied for TensorBoard: it has no "traceEvents" list')
    return loaded
