"""The report of trainings, on a terminal and in the report folder: page, training.md, training.csv,
curves.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpscope.analysis.findings.facts import Fact, Verdict, capital, numbered
from dpscope.analysis.report.files import DEFAULT_FORMATS, facts_in_markdown, write_with_figures
from dpscope.analysis.report.page import LEARNING_MEASURES, Page, render_page
from dpscope.analysis.report.setting import versions
from dpscope.analysis.text.terminal import (
    open_in_browser,
    print_findings,
    print_missing,
    print_sentences,
    print_table,
)
from dpscope.analysis.text.text_table import in_markdown, reasons, render, render_findings
from dpscope.analysis.text.units import NA, show_moment
from dpscope.analysis.training.answer import next_actions, training_answer
from dpscope.analysis.training.data import TrainingData, load_training
from dpscope.analysis.training.findings import training_findings
from dpscope.analysis.training.tables import training_csv, training_json, training_tables
from dpscope.profiling.records.finding import Finding, counted
from dpscope.profiling.records.training import TrainManifest
from dpscope.profiling.store.folders import RunFolder, is_run_folder
from dpscope.profiling.store.shown_text import write_out

if TYPE_CHECKING:
    from dpscope.analysis.figures.draw import PageFigure


_ACCURACY = "test accuracy after the last epoch, medians over seeds; losses are in the table"
_SPEED = "median training time of an epoch, loading included"


def show_training(
    folder: Path,
    target_accuracy: float | None,
    console: Console,
    figure_formats: Sequence[str] = DEFAULT_FORMATS,
    open_page: bool = False,
) -> bool:
    """Print a run folder's trainings and write their files; False if a finding is an error.

    See `write_training` for the files.
    """
    data = load_training(folder, target_accuracy)
    findings = training_findings(data)
    print_sentences(console, [fact.text for fact in training_verdict(data, findings).facts])
    shown = training_tables(data).values()
    for table in shown:
        print_table(console, table)
    unknown = [one for table in shown for one in table.unknown]
    print_missing(console, reasons(unknown))
    print_findings(console, findings)
    path = write_training(data, figure_formats)
    console.print(f"\nReport: {path}", highlight=False, soft_wrap=True)
    if open_page:
        open_in_browser(path)
    return _sound(findings)


def print_training(folder: Path, output_format: str, target_accuracy: float | None) -> bool:
    """Print a run folder's trainings as JSON, CSV, Markdown or LaTeX; False if a finding is an
    error.
    """
    data = load_training(folder, target_accuracy)
    if output_format == "json":
        write_out(training_json(data) + "\n")
    elif output_format == "csv":
        write_out(training_csv(data))
    else:
        for table in training_tables(data).values():
            write_out(render(table, output_format) + "\n")
    return _sound(training_findings(data))


def _sound(findings: Sequence[Finding]) -> bool:
    return not any(finding.severity == "error" for finding in findings)


def write_training(data: TrainingData, figure_formats: Sequence[str] = DEFAULT_FORMATS) -> Path:
    """Write training.md, training.csv, the curves and the page; returns the path of the page.

    `figure_formats` are as in `write_report`. In a folder with measurements the page is not
    written, since the run's report includes the trainings.
    """
    from dpscope.analysis.figures.draw import draw_training

    page = _page_of(data)

    def texts(figures: "Mapping[str, PageFigure]") -> dict[str, str]:
        files = {"training.csv": training_csv(data), "training.md": training_markdown(data)}
        if page.name not in files:
            files[page.name] = render_page(training_page(data, figures))
        return files

    write_with_figures(
        page.parent,
        draw_training(data, _setting(data)),
        figure_formats,
        texts,
        [_setting(data)],
        whole=not is_run_folder(data.folder),
    )
    return page


def _page_of(data: TrainingData) -> Path:
    """The file that shows a folder's trainings: a page, or Markdown next to a run's page."""
    return RunFolder(data.folder).report_path / (
        "training.md" if is_run_folder(data.folder) else "report.html"
    )


def training_markdown(data: TrainingData) -> str:
    """Tables and findings as Markdown."""
    parts = [in_markdown(f"# Trainings: {data.folder.name}") + "\n"]
    findings = training_findings(data)
    parts += [*facts_in_markdown(training_verdict(data, findings)), ""]
    parts += [render(table, "markdown") for table in training_tables(data).values()]
    return "\n".join([*parts, render_findings(findings)])


def training_page(data: TrainingData, figures: "Mapping[str, PageFigure]") -> Page:
    """The page's content."""
    findings = training_findings(data)
    return Page(
        name=data.folder.name,
        verdict=training_verdict(data, findings),
        setting=_setting(data),
        environment=list(_facts(data.manifest)),
        findings=findings,
        tables={"learning": training_tables(data)},
        figures=figures,
        measures=LEARNING_MEASURES,
        data_file="training.csv",
    )


def training_verdict(data: TrainingData, findings: Sequence[Finding]) -> Verdict:
    """The answers about trainings, as facts."""
    answer = training_answer(data)
    cells = counted(len(data.trained), "cell")
    setting = f"{cells} trained for {counted(data.planned_epochs, 'epoch')}"
    lines = [line for line in (answer.accuracy, answer.others) if line]
    facts = [Fact("accuracy", answer.label, tuple(lines), _ACCURACY)]
    if answer.speed:
        facts.append(Fact("speed", "SPEED", (answer.speed,), _SPEED))
    actions = [capital(step) for step in next_actions(findings)]
    if actions:
        facts.append(Fact("next", "NEXT", numbered(actions), "what the findings ask for"))
    return Verdict(setting, facts=tuple(facts))


def _setting(data: TrainingData) -> str:
    if data.manifest is None:
        return f"{counted(data.planned_epochs, 'epoch')}; train.json does not contain model, data and machine."
    manifest = data.manifest
    config = manifest.config
    workload = config.workload
    learning_rate = config.optimizer.learning_rate
    epochs = counted(config.epochs, "epoch")
    seeds = counted(len(config.seeds), "seed")
    torch_version = manifest.environment.torch_version
    started = show_moment(manifest.created_at)
    return (
        f"{workload.model}, {workload.data} data, amp {workload.amp}, SGD at {learning_rate:g}, "
        f"{epochs}, {seeds}; {manifest.device_type}, torch {torch_version}; started {started}."
    )


def _facts(manifest: TrainManifest | None) -> Iterator[tuple[str, str]]:
    """Name and value of all settings that must be equal to compare trainings."""
    if manifest is None:
        yield "Trained", "unknown: train.json does not contain it"
        return
    environment, config = manifest.environment, manifest.config
    optimizer, milestones = config.optimizer, ", ".join(map(str, config.milestones))
    yield "Trained", manifest.created_at
    yield "dpscope", manifest.dpscope_version
    yield "Host", environment.hostname
    yield "Platform", environment.platform
    yield "CPU", f"{environment.cpu_name or NA}, {counted(environment.cpu_count, 'core')} usable"
    yield from versions(environment)
    yield "Threads per process", str(manifest.threads_per_process)
    yield "Seeds", ", ".join(map(str, config.seeds))
    yield (
        "Learning rate",
        f"{optimizer.learning_rate:g}, scaled with the global batch: {config.learning_rate_scaling}",
    )
    yield "Milestones", f"{milestones} by {config.gamma:g}" if milestones else "none"
    yield "Warm-up", counted(config.warmup_epochs, "epoch")
    yield "Momentum, weight decay", f"{optimizer.momentum:g}, {optimizer.weight_decay:g}"
    yield "Label smoothing", f"{config.label_smoothing:g}"
    yield "Augmentation", "on" if config.augment else "off"
    for device in environment.accelerators:
        yield f"GPU {device.index}", device.name or NA
