"""The figures, drawn once and used everywhere: page, PNG, SVG and PDF files, TensorBoard."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import matplotlib as mpl
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures import scaling, step, training
from dpscope.analysis.figures.calibration import MOST_PANELS, bandwidths
from dpscope.analysis.figures.efficiency import Efficiencies, efficiency_figure
from dpscope.analysis.figures.style import (
    DOTS_PER_INCH,
    STYLE,
    WIDTH,
    finish,
    has_whiskers,
    labelled,
)
from dpscope.analysis.figures.waiting_over_time import WaitingOverTime, waiting_figure
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.text.latex import in_latex
from dpscope.analysis.text.units import sentence
from dpscope.analysis.training.data import TrainingData
from dpscope.profiling.store.ownership import CAPTIONS_MARK

_ID = re.compile(r'(\bid="|url\(#|href="#)')

Source = TypeVar("Source")


class RunSource(NamedTuple):
    """What the figures of a run are drawn from."""

    run: RunData
    comparison: Comparison
    efficiencies: Efficiencies
    measured: str = ""  # what was measured and what limits it, in a line under each figure


@dataclass(frozen=True)
class FigureEntry(Generic[Source]):
    """One figure: its file's name, section of the page and words.

    `draw` returns None where there is nothing to see. The caption has those sentences of
    `explained` whose label the figure shows; `whiskers` are explained where some are drawn.
    """

    name: str
    section: str
    draw: Callable[[Source], Figure | None]
    title: str
    caption: str
    explained: Mapping[str, str] = field(default_factory=dict)
    whiskers: str = "95% intervals"


RUN_FIGURES: tuple[FigureEntry[RunSource], ...] = (
    FigureEntry(
        "communication",
        "answers",
        lambda of: step.measured_and_estimated(of.comparison),
        "Communication per step",
        "Measured communication of traced steps (stacked; its interval is of the exposed part) against the shortcuts.",
        {
            "hidden": "Hidden: the device computes meanwhile. All else is exposed.",
            "$t_N(b) - t_1(b)$": "The subtraction compares untraced steps and can be negative.",
            "ring formula": "The ring formula uses the link's rate, else the calibration's.",
        },
    ),
    FigureEntry(
        "step_split",
        "answers",
        lambda of: step.step_split(of.comparison),
        "Where a traced step goes",
        "Mean traced step of each cell. Wait, transfer and other are exposed communication.",
        {
            "wait": "Wait: a collective waits for a late rank.",
            "transfer": "Transfer: its data move.",
            "other": "Other: neither, or not separated.",
            "idle": "Idle: neither compute nor communication.",
        },
    ),
    FigureEntry(
        "batch",
        "numbers",
        lambda of: scaling.batch_figure(of.run, of.comparison),
        "Step time and throughput by batch",
        "Median untraced step, and the global batch over it, by the batch per device; markers of one "
        "batch are drawn next to each other. A cross marks a batch at which memory ran out.",
    ),
    FigureEntry(
        "waterfall",
        "strategies",
        lambda of: step.waterfall(of.run, of.comparison),
        "What differs from DDP's step",
        "Diamonds: median untraced steps, DDP's at 0. Each part between them is the difference of "
        "the means of traced steps; unexplained is what these differences leave of the untraced one.",
        whiskers="95% interval of the difference",
    ),
    FigureEntry(
        "waits",
        "waiting",
        lambda of: step.waits(of.run),
        "Exposed waiting per step: the row's rank for the column's",
        f"Means of traced steps, of at most {step.MOST_WAIT_PANELS} cells, those that wait longest: "
        "the rank of the row waits in collectives for the column's, which comes last.",
    ),
    FigureEntry(
        "wait_strip",
        "waiting",
        lambda of: step.wait_strip(of.run),
        "Exposed waiting by rank and traced step",
        "Left: how long each rank waits. Right: how long the others wait for it, on average; a row "
        "that is dark throughout is a rank that makes the others wait. Each panel has its own "
        "scale.",
    ),
    FigureEntry(
        "scaling",
        "scaling",
        lambda of: scaling.draw_scaling(of.comparison),
        "Speedup and efficiency against one device",
        "From untraced step times. Weak: same batch per device; strong: same global batch.",
        {
            scaling.TARGET: "Dash-dotted: --target-efficiency.",
            scaling.LAW: "Thin lines: laws fitted to these points, up to twice the largest count.",
            scaling.BAND: "Bands: 95% intervals of the laws.",
        },
    ),
    FigureEntry(
        "busbw",
        "bandwidth",
        lambda of: bandwidths(of.run, of.comparison.collective_costs),
        "Bus bandwidth by message size",
        f"Bytes over the mean transfer of one size in the traces, as in the tables; at most {MOST_PANELS} "
        "collectives, those that moved the most bytes.",
        whiskers="range over transfers",
    ),
    FigureEntry(
        "what_if",
        "what_if",
        lambda of: efficiency_figure(of.efficiencies),
        "Predicted efficiency on more devices",
        "Replayed from the cell that the legend names; above 100% it is the noise of the measured "
        "steps.",
        {"measured": "Circles: that cell and others of its batch and options, as measured."},
        whiskers="90% bands of the predictions",
    ),
)
_SEEDS = {
    training.SEED: "Thin: one line per seed; thick: their median up to the shortest training."
}
TRAINING_FIGURES: tuple[FigureEntry[TrainingData], ...] = (
    FigureEntry(
        "training_accuracy",
        "learning",
        training.accuracy_curves,
        "Accuracy while training",
        "By epoch and by training time, without evaluation. A faster strategy is as good only if "
        "its line also ends as high. Widths differ so that coinciding lines are all visible.",
        _SEEDS,
    ),
    FigureEntry(
        "training_loss",
        "learning",
        training.loss_curves,
        "Loss while training",
        "By epoch and by training time, without evaluation. The training loss is the one "
        "minimised, the test loss the same without label smoothing.",
        _SEEDS,
    ),
)
RECORD_FIGURES: tuple[FigureEntry[WaitingOverTime], ...] = (
    FigureEntry(
        "waiting_over_time",
        "waiting",
        waiting_figure,
        "Waiting over time by rank",
        "Left: how long each rank waits in collectives. Right: how long the others wait for it; a "
        "row that is dark throughout is a rank that makes the others wait all the time. Each panel "
        "has its own scale.",
    ),
)
_ENTRIES: tuple[FigureEntry[Any], ...] = (*RUN_FIGURES, *TRAINING_FIGURES, *RECORD_FIGURES)
FIGURES = {entry.name: entry for entry in _ENTRIES}
"""Every figure of a report by name, in the order of the page."""


class PageFigure(NamedTuple):
    """A figure as a part of the page."""

    section: str
    caption: str
    svg: str
    width_inches: float


def draw_run(source: RunSource) -> dict[str, Figure]:
    """The figures of a run and of the trainings in its folder, by file name."""
    drawn = _draw(RUN_FIGURES, source, source.measured)
    trained = source.run.training
    if trained is not None:
        drawn |= draw_training(trained)
    return drawn


def draw_training(data: TrainingData, measured: str = "") -> dict[str, Figure]:
    """The curves of trainings by file name; `measured` is the line under each."""
    return _draw(TRAINING_FIGURES, data, measured)


def draw_waiting_over_time(source: WaitingOverTime | None) -> dict[str, Figure]:
    """The figure of a job's records, if they hold waiting over time, by file name."""
    return {} if source is None else _draw(RECORD_FIGURES, source)


def _draw(
    entries: Sequence[FigureEntry[Source]], source: Source, measured: str = ""
) -> dict[str, Figure]:
    drawn = {}
    with mpl.rc_context(STYLE):
        for entry in entries:
            if (figure := entry.draw(source)) is not None:
                finish(figure, entry.title, entry.whiskers, measured)
                drawn[entry.name] = figure
    return drawn


def caption_of(name: str, figure: Figure) -> str:
    """What this figure shows, in sentences, and nothing that it does not."""
    entry, shown = FIGURES[name], labelled(figure)
    sentences = [entry.caption]
    sentences += [text for label, text in entry.explained.items() if label in shown]
    if has_whiskers(figure):
        sentences.append(f"Whiskers: {entry.whiskers}.")
    return " ".join(sentences)


def figure_files(
    drawn: Mapping[str, Figure], formats: Sequence[str]
) -> tuple[dict[str, PageFigure], dict[str, bytes]]:
    """Each figure by its name as a part of the page, and files in these formats ("png", "svg",
    "pdf") by file name.
    """
    svg = {name: saved(figure, "svg") for name, figure in drawn.items()}
    made = {
        f"{name}.{one}": svg[name] if one == "svg" else saved(figure, one)
        for name, figure in drawn.items()
        for one in formats
    }
    parts = {
        name: PageFigure(
            FIGURES[name].section,
            caption_of(name, figure),
            for_page(name, svg[name].decode()),
            figure.get_figwidth(),
        )
        for name, figure in drawn.items()
    }
    return parts, made


def captions(figures: Mapping[str, PageFigure], measured: Sequence[str]) -> str:
    """The figures as floats of LaTeX, each with its title and caption; the first also states what
    was `measured` and what limits it, and the others refer to it.
    """
    lines = [
        f"{CAPTIONS_MARK}, which writes this file again with the figures.",
        r"% Needs graphicx, \graphicspath with this folder, such as {{report/figures/}}, and PDF or PNG.",
    ]
    conditions = list(map(sentence, measured))
    stated_in = None
    for name, figure in figures.items():
        label = f"fig:{name.replace('_', '-')}"
        described = [sentence(FIGURES[name].title), figure.caption]
        if stated_in is None:
            stated_in = label
            caption = in_latex(" ".join([*described, *conditions]))
        else:
            caption = rf"{in_latex(' '.join(described))} Measured as in Figure~\ref{{{stated_in}}}."
        width = min(1.0, figure.width_inches / WIDTH)
        lines += [
            "",
            r"\begin{figure}",
            r"  \centering",
            rf"  \includegraphics[width={width:.2g}\linewidth]{{{name}}}",
            rf"  \caption{{{caption}}}",
            rf"  \label{{{label}}}",
            r"\end{figure}",
        ]
    return "\n".join(lines) + "\n"


_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": "dpscope"},
    "svg": {"Date": None, "Creator": "dpscope"},
    "pdf": {"CreationDate": None, "Creator": "dpscope"},
}


def saved(figure: Figure, file_format: str) -> bytes:
    """The figure in a format of _METADATA, the same bytes for the same figure; SVG without the XML
    prologue.
    """
    buffer, is_svg = io.BytesIO(), file_format == "svg"
    with mpl.rc_context(STYLE if is_svg else {}):
        figure.savefig(
            buffer, format=file_format, dpi=DOTS_PER_INCH, metadata=_METADATA[file_format]
        )
    content = buffer.getvalue()
    return content[content.index(b"<svg") :] if is_svg else content


def for_page(name: str, svg: str) -> str:
    """A figure's SVG as part of a page: transparent, with lines in the page's text colour and
    unique ids.
    """
    inked = (
        svg.replace('style="fill: #ffffff"', 'style="fill: none"')
        .replace("#000000", "currentColor")
        .replace("#dddddd", "var(--rule)")
    )
    return _ID.sub(rf"\1{name}-", inked)
