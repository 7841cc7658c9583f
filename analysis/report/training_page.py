"""The report page of a folder that holds trainings and no measurement."""

from collections.abc import Iterator, Mapping

import pandas as pd

from dpscope.analysis.cells.columns import NAMES
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.report.meanings import LEARNING_MEASURES
from dpscope.analysis.report.page import Page, PageFigure, page_sections
from dpscope.analysis.report.setting import versions
from dpscope.analysis.text.units import NA
from dpscope.analysis.training.data import TrainingData
from dpscope.analysis.training.findings import difference_message, training_findings
from dpscope.analysis.training.seed_statistics import against_single, final_accuracy
from dpscope.analysis.training.tables import training_tables
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.training import TrainManifest

_NO_COMPARISON = Comparison(table=pd.DataFrame(columns=list(NAMES)), reasons={}, gaps=())


def training_page(data: TrainingData, svg: Mapping[str, str]) -> Page:
    """The page's content; `svg` holds the drawn figures by name."""
    from dpscope.analysis.figures.draw import CAPTIONS, for_page

    drawn = {name: PageFigure(name, for_page(name, text), CAPTIONS[name]) for name, text in svg.items()}
    return Page(
        answers=None,
        name=data.folder.name,
        headline=_headline(data),
        setting=_setting(data),
        environment=tuple(_facts(data.manifest)),
        findings=tuple(training_findings(data)),
        sections=tuple(page_sections(_NO_COMPARISON, training_tables(data), drawn, ())),
        timelines=(),
        measures=LEARNING_MEASURES,
        definitions=(),
        data_file="training.csv",
    )


def _headline(data: TrainingData) -> str:
    """The last cell without a variant beside a single device, else what the first one reached."""
    plain = {cell.name for cell in data.trained if not cell.variant}
    known = [one for one in against_single(data) if one.points is not None]
    if known:
        return difference_message(([one for one in known if one.cell in plain] or known)[-1])
    accuracy = final_accuracy(data.trained[0])
    if accuracy.value is None:
        return "No training has all its epochs yet."
    return f"{data.trained[0].name}: {accuracy.value:.2f}% test accuracy after {counted(data.planned_epochs, 'epoch')}"


def _setting(data: TrainingData) -> str:
    if data.manifest is None:
        return f"{counted(data.planned_epochs, 'epoch')}; train.json does not tell model, data and machine."
    config, workload = data.manifest.config, data.manifest.config.workload
    return (
        f"{workload.model}, {workload.data} data, amp {workload.amp}, "
        f"SGD at {config.optimizer.learning_rate:g}, {counted(config.epochs, 'epoch')}, "
        f"{counted(len(config.seeds), 'seed')}; {data.manifest.device_type}, torch {data.manifest.environment.torch_version}; "
        f"begun {data.manifest.created_at}."
    )


def _facts(manifest: TrainManifest | None) -> Iterator[tuple[str, str]]:
    """Name and value of everything that has to be equal for trainings to be compared."""
    if manifest is None:
        yield "Trained", "train.json does not tell where and how"
        return
    environment, config = manifest.environment, manifest.config
    yield "Trained", manifest.created_at
    yield "dpscope", manifest.dpscope_version
    yield "Host", environment.hostname
    yield "Platform", environment.platform
    yield "CPU", f"{environment.cpu_name or NA}, {counted(environment.cpu_count, 'core')} usable"
    yield from versions(environment)
    yield "Threads per process", str(manifest.threads_per_process)
    yield "Seeds", ", ".join(map(str, config.seeds))
    yield "Learning rate", f"{config.optimizer.learning_rate:g}, scaled by devices: {config.learning_rate_scaling}"
    yield (
        "Milestones",
        ", ".join(map(str, config.milestones)) + f" by {config.gamma:g}" if config.milestones else "none",
    )
    yield "Warm-up", f"{counted(config.warmup_epochs, 'epoch')}"
    yield "Momentum, weight decay", f"{config.optimizer.momentum:g}, {config.optimizer.weight_decay:g}"
    yield "Label smoothing", f"{config.label_smoothing:g}"
    yield "Augmentation", "on" if config.augment else "off"
    for device in environment.accelerators:
        yield f"GPU {device.index}", device.name or NA
