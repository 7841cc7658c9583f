"""The style and colours of all figures, and helpers that several of them share."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscope.analysis.text.units import name_folded
from dpscope.profiling.records.finding import grouped
from dpscope.profiling.records.strategies import STRATEGIES
from dpscope.profiling.store.shown_text import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CHARACTERS_PER_INCH = 13  # of legends and titles; names of cells have 0.45 of the width
_SMALL, _SMALL_PER_INCH = 7, 19  # points, and characters of that size
_Numbers = Sequence[float | None] | np.ndarray
SHORTEST_SHARE = 0.006  # of the axis: a shorter bar cannot be seen
# inches of a figure that a character takes, if its axes take half of it; of the axes, all of them
_CHARACTER, _MOST_TEXT = 0.14, 0.85
_GAP = 0.06  # inches above the title and the legend
# inches: a figure on its own, as wide as the text of a paper, and one of two next to each other,
# which a telephone shows whole
WIDTH, NARROW = 6.3, 5.0
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DOTS_PER_INCH = 200  # of PNG, sharp in print; widths of text are measured at it
STYLE: Any = {
    "figure.dpi": DOTS_PER_INCH,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "dpscope",
}


def new_figure(
    rows: int, width: float = WIDTH, columns: int = 1, row_height: float = 0.34
) -> "tuple[Figure, list[Axes]]":
    """A figure with a height for so many rows, and axes next to each other."""
    return panel_grid(columns, columns, width, 1.5 + row_height * rows)


def panel_grid(
    count: int, columns: int, width: float, height: float, top: float = 0.0
) -> "tuple[Figure, list[Axes]]":
    """A figure of this width with `count` panels, so many in a row of this height, below a title of
    height `top` (inches).
    """
    from matplotlib.figure import Figure  # not by those who only take the colours

    rows = -(-count // columns)
    figure = Figure(figsize=(width, top + height * rows))
    return figure, [figure.add_subplot(rows, columns, index + 1) for index in range(count)]


def finish(figure: "Figure", title: str, whiskers: str, measured: str = "") -> None:
    """Give a drawn figure its title, legend and layout, and rows of bars their values.

    The title states what the `whiskers` are where there are some; `measured` is the line at the
    bottom.
    """
    for axes in figure.axes:
        _write_values(axes)
    explained = f"{title}; whiskers: {whiskers}" if has_whiskers(figure) else title
    height, in_a_line = figure.get_figheight(), int(figure.get_figwidth() * _CHARACTERS_PER_INCH)
    folded = textwrap.fill(explained, in_a_line)
    figure.suptitle(folded, x=0.01, y=1 - _GAP / height, ha="left", fontsize=10)
    bottom = _write_below(figure, measured)  # inches without axes
    handles = labelled(figure)
    if handles:
        longest = max(len(label) for label in handles)
        in_a_row = in_a_line // (longest + 5)
        legend = figure.legend(
            list(handles.values()),
            list(handles),
            loc="lower center",
            bbox_to_anchor=(0.5, bottom / height),
            ncols=min(max(in_a_row, 1), len(handles)),
            columnspacing=1.2,
        )
        bottom += legend.get_window_extent().height / figure.dpi + _GAP
    # laid out once for all files, in one pass
    figure.tight_layout(pad=0.5, rect=(0, bottom / height, 1, 1))


def _write_below(figure: "Figure", text: str) -> float:
    """Small text at the bottom of a figure; returns its height in inches, 0 without any."""
    if not text:
        return 0.0
    in_a_line = int(figure.get_figwidth() * _SMALL_PER_INCH)
    lines = textwrap.wrap(text, in_a_line)
    folded = "\n".join(map(literal, lines))
    drawn = figure.text(0.01, 0.0, folded, va="bottom", fontsize=_SMALL, color="#666666")
    return drawn.get_window_extent().height / figure.dpi + _GAP


def labelled(figure: "Figure") -> dict[str, Any]:
    """What a figure's legend explains: each label once, with a drawn part that has it."""
    once: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        once = dict(zip(labels, handles, strict=True)) | once
    return once


def has_whiskers(figure: "Figure") -> bool:
    """Whether any error bar of a known length was drawn."""
    bars = (bar for axes in figure.axes for bar in _whisker_lines(axes))
    return any(bool(np.ptp(bar, axis=0).max() > 0) for bar in bars)


def _whisker_lines(axes: "Axes") -> "Iterator[np.ndarray]":
    """The two ends of each error bar."""
    from matplotlib.container import ErrorbarContainer

    for container in axes.containers:
        if isinstance(container, ErrorbarContainer):
            for lines in container.lines[2]:
                yield from (line for line in lines.get_segments() if len(line))


def _write_values(axes: "Axes") -> None:
    """Write what each row of labelled horizontal bars adds up to behind its end, with those of its
    parts that are too short to see.
    """
    shortest = SHORTEST_SHARE * float(np.ptp(axes.get_xlim()))
    ends = _row_ends(axes)
    for row, parts in grouped(_parts(axes)).items():
        total = sum(length for _, length in parts)
        text = digits(total, 3)
        short = [
            f"{label} {digits(length, 2)}" for label, length in parts if abs(length) < shortest
        ]
        if short and len(parts) > 1:
            text += f" ({', '.join(short)})"
        _write_behind(axes, row, max(0.0, total, ends.get(row, 0.0)), text)


def _parts(axes: "Axes") -> "Iterator[tuple[float, tuple[str, float]]]":
    """Of each labelled bar that has a length: its row, its label and its length."""
    from matplotlib.container import BarContainer

    for bars in axes.containers:
        label = str(bars.get_label())
        if isinstance(bars, BarContainer) and not label.startswith("_"):
            for bar in bars:
                if abs(bar.get_width()) > 0:  # not of NaN
                    row = _row(bar.get_y() + bar.get_height() / 2)
                    yield row, (label, bar.get_width())


def _row_ends(axes: "Axes") -> dict[float, float]:
    """Where the whisker of a row ends, by row."""
    return {_row(place): end for *_, (end, place) in _whisker_lines(axes) if not np.isnan(end)}


def _row(place: float) -> float:
    return round(float(place), 6)


def _write_behind(axes: "Axes", row: float, end: float, text: str) -> None:
    """Write a text behind the end of a row, and give it room."""
    axes.annotate(text, (end, row), xytext=(4, 0), textcoords="offset points", va="center")
    figure = axes.get_figure(root=True)
    assert figure is not None
    share = min(len(text) * _CHARACTER / figure.get_figwidth(), _MOST_TEXT)
    left, right = axes.get_xlim()
    axes.set_xlim(right=max(right, left + (end - left) / (1 - share)))


def digits(value: float, count: int) -> str:
    """A number with so many significant digits, as labels of a bar state it."""
    return np.format_float_positional(value, count, unique=False, fractional=False)


def write_next_to(axes: "Axes", place: float, text: str) -> None:
    """Write a text to the right of the axes, where it covers nothing, in the row of a bar."""
    axes.annotate(
        text, (1.01, place), xycoords=axes.get_yaxis_transform(), va="center", annotation_clip=False
    )


def whiskers(values: "_Numbers", low: "_Numbers", high: "_Numbers") -> "np.ndarray":
    """How far the ends of intervals lie below and above their values, as error bars take it; NaN,
    not drawn, where unknown.
    """
    ends = np.array([low, high], dtype=float) - np.array(values, dtype=float)
    found: np.ndarray = (ends * np.array([[-1.0], [1.0]])).clip(min=0.0)
    return found


def bar_rows(
    axes: "Axes",
    places: "Sequence[Any] | np.ndarray",
    parts: "Mapping[str, Sequence[float] | np.ndarray]",
    height: float = 0.7,
) -> None:
    """Stacked horizontal bars: `parts` has for each label of PARTS a value per place; parts that are
    0 or NaN everywhere are omitted.
    """
    left = np.zeros(len(places))
    for label, values in parts.items():
        if not np.nan_to_num(values).any():
            continue
        colour, hatch = PARTS[label]
        axes.barh(
            places,
            values,
            left=left,
            label=label,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            height=height,
        )
        left = left + values


def downwards(axes: "Axes", label: str) -> None:
    """Horizontal bars are listed from the top, long names of cells folded; only their values have a
    grid.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    longest = int(0.45 * _CHARACTERS_PER_INCH * figure.get_figwidth())
    names = [name_folded(tick.get_text(), longest) for tick in axes.get_yticklabels()]
    axes.set_yticks(axes.get_yticks(), names)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label, loc="right")  # long names leave the axes little width


def literal(text: str) -> str:
    """A name for a label as `one_line`, with dollar signs escaped, which would begin a formula."""
    return one_line(text).replace("$", r"\$")


# Okabe and Ito's palette, which colour-blind readers can distinguish, and further colours with a
# contrast of at least 3:1 on white and on the page's dark background. A colour has one meaning in
# all figures and on the page; strategies, whose colours are their own, never stand next to parts.
COLOURS = {
    "compute": "#0072B2",
    "hidden": "#E69F00",
    "exposed": "#D01C2F",  # wait, transfer and other together
    "wait": "#CC6677",
    "transfer": "#009E73",
    "other": "#D55E00",
    "idle": "#BBBBBB",
    "unknown": "#808080",
    "copies": "#CC79A7",
    "scatter": "#C77C3A",
    "replicate": "#B5366F",  # the phase; the strategy of that name has the same colour
    "parallel_apply": "#4F97C4",
    "gather": "#7F8F2A",
    "loss_backward": "#8292A8",
    "gradient_reduce": "#8C6BD1",
    "unexplained": "#A6761D",
    "subtraction": "#AA4499",
    "ring": "#56B4E9",
    "predicted": "#882255",
    **{name: traits.colour for name, traits in STRATEGIES.items()},
}

# The parts of bars by their label: colour, and a hatch, which sets neighbours apart in grey, too.
PARTS = {
    "compute": (COLOURS["compute"], ""),
    "hidden": (COLOURS["hidden"], "---"),
    "wait": (COLOURS["wait"], "////"),
    "transfer": (COLOURS["transfer"], ".."),
    "other": (COLOURS["other"], "xxxx"),
    "idle": (COLOURS["idle"], ""),
    "unknown": (COLOURS["unknown"], "\\\\"),
    "$t_N(b) - t_1(b)$": (COLOURS["subtraction"], ""),
    "ring formula": (COLOURS["ring"], "||||"),
}
