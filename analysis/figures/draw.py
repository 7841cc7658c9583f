"""The figures, drawn once and used everywhere: page, PNG, SVG and PDF files, TensorBoard."""

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.figures import scaling, step, training
from dpscope.analysis.figures.calibration import bandwidths
from dpscope.analysis.figures.style import STYLE
from dpscope.analysis.runs.run_data import RunData

_ID = re.compile(r'(\bid="|url\(#|href="#)')

CAPTIONS = {
    "batch": "Median untraced step and the throughput that follows from it, over the batch per device. A cross marks a batch at "
    "which memory ran out and nothing was measured.",
    "waterfall": "From DDP's median untraced step to the other strategy's, for up to three pairs of cells. Each part is the "
    "difference of the means of traced steps; tracer is what these differences leave of the untraced one.",
    "step_split": "Mean traced step of each cell. Exposed: communication while nothing computes. Wait: a collective waits for a "
    "late rank. Other: neither wait nor transfer, or not separated. Idle: neither compute nor communication.",
    "phases": "Means of traced steps: compute time of the forward pass, the backward pass and the optimizer, exposed "
    "communication and copies of the batch to the device. Idle time is not drawn, nor a phase that the trace does not show.",
    "device_use": "The traced step as 100 points: the time that its FLOPs would take at the peak, and the loss in the parts of "
    "the ledger. Compute below the peak holds parts that are not known.",
    "waits": "Mean exposed waiting per traced step, of up to four cells, the longest waits first: the rank of the row waits in "
    "collectives for the column's, which comes last. Waiting behind compute is not in it.",
    "wait_strip": "Left: how long each rank waits, exposed, in each traced step. Right: how long the others wait for it, on "
    "average. A row that is dark throughout on the right is a rank that makes the others wait. Each panel has its own scale.",
    "communication": "Measured: communication read from the traces, hidden behind compute or exposed. The subtraction can be "
    "negative; the ring formula, where a rate is known, uses the link's, else the calibration's bus bandwidth.",
    "busbw": "Bus bandwidth of the collectives' transfers in the traces by message size, of the up to four collectives that "
    "moved most bytes, next to the calibration's fit, the ring formula at the link's rate and the link's specification, where "
    "they are known.",
    "scaling": "Speedup and efficiency from untraced step times; whiskers and bands, if any, are 95% intervals. Weak: same batch "
    "per device; strong: same global batch. Thin lines, if any: fitted laws, up to twice the largest count.",
    "what_if": "Predicted efficiency on as many devices and more, replayed from the cell named in the chapter, with its 90% "
    "band. Circles: that cell and others of its batch and options, as measured.",
    "study": "Speedup, efficiency and test accuracy, whose axis does not begin at 0. Whiskers of speedup and efficiency are 95% "
    "intervals, those of accuracy the range over seeds. Thin lines, if any: Amdahl's law through the strong point of most "
    "devices.",
    **training.TRAINING_CAPTIONS,
}


def draw_all(run: RunData, comparison: Comparison) -> dict[str, Figure]:
    """The figures of a run by file name; those without numbers are omitted."""
    with mpl.rc_context(STYLE):
        drawn = {
            "batch": scaling.batch_figure(run, comparison),
            "waterfall": step.waterfall(run, comparison),
            "step_split": step.step_split(run, comparison),
            "phases": step.phase_split(run),
            "device_use": step.device_use(run, comparison),
            "waits": step.waits(run),
            "wait_strip": step.wait_strip(run),
            "communication": step.measured_and_estimated(run, comparison),
            "busbw": bandwidths(run, comparison.collective_costs),
            "scaling": scaling.draw_scaling(comparison),
            "study": scaling.draw_study(comparison),
            **(training.training_figures(run.training) if run.training else {}),
        }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def figure_files(
    drawn: Mapping[str, Figure], formats: Sequence[str]
) -> tuple[dict[str, str], dict[str, bytes]]:
    """The SVG of each figure by its name, and files in these formats ("png", "svg", "pdf") by file
    name.
    """
    for figure in drawn.values():  # laid out once for all files
        figure.draw_without_rendering()
        figure.set_layout_engine(None)
    svg = {name: saved(figure, "svg") for name, figure in drawn.items()}
    made = {
        f"{name}.{one}": svg[name] if one == "svg" else saved(figure, one)
        for name, figure in drawn.items()
        for one in formats
    }
    return {name: content.decode() for name, content in svg.items()}, made


DOTS_PER_INCH = 150  # of PNG
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
    dpi: Any = DOTS_PER_INCH if file_format == "png" else "figure"
    with mpl.rc_context(STYLE if is_svg else {}):
        figure.savefig(buffer, format=file_format, dpi=dpi, metadata=_METADATA[file_format])
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
