"""The style and colours of all figures, and helpers that several of them share."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscope.analysis.text.units import name_folded
from dpscope.profiling.records.strategies import STRATEGIES
from dpscope.profiling.store.shown_text import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LONGEST_NAME = 38  # characters in a line
WIDTH, NARROW = 7.5, 5.8  # inches: a figure on its own, and one of two next to each other
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "font.size": 9.0,
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
    figure = Figure(figsize=(width, top + height * rows), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, index + 1) for index in range(count)]


def headline(figure: "Figure", title: str) -> None:
    """A title over all panels, at the left."""
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)


def whiskers(
    values: "Sequence[float | None]", low: "Sequence[float | None]", high: "Sequence[float | None]"
) -> "np.ndarray":
    """How far the ends of intervals lie below and above their values, as error bars take it; NaN,
    not drawn, where unknown.
    """
    ends = np.array([low, high], dtype=float) - np.array(values, dtype=float)
    found: np.ndarray = (ends * np.array([[-1.0], [1.0]])).clip(min=0.0)
    return found


def bar_rows(
    axes: "Axes",
    places: "Sequence[Any]",
    parts: "Mapping[str, tuple[Sequence[float], str]]",
    height: float = 0.7,
) -> None:
    """Stacked horizontal bars: `parts` has for each label a value per place, and the colour."""
    left = np.zeros(len(places))
    for name, (values, colour) in parts.items():
        axes.barh(places, values, left=left, label=name, color=colour, height=height)
        left = left + values


def downwards(axes: "Axes", label: str) -> None:
    """Horizontal bars are listed from the top, long names of cells folded; only their values have a
    grid.
    """
    axes.set_yticks(
        axes.get_yticks(),
        [name_folded(one.get_text(), _LONGEST_NAME) for one in axes.get_yticklabels()],
    )
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(label, loc="right")  # long names leave the axes little width


def shared_legend(figure: "Figure", axes: "Iterable[Axes]", columns: int) -> None:
    """One legend below a figure, with each label of these axes once."""
    once: dict[str, Any] = {}
    for one in axes:
        once |= dict(zip(*reversed(one.get_legend_handles_labels()), strict=True))
    figure.legend(list(once.values()), list(once), loc="outside lower center", ncols=columns)


def with_intervals(title: str, ends: "Iterable[float | None]") -> str:
    """A figure's title, which states what its whiskers are, or that it has none; `ends` are those
    of all intervals.
    """
    return (
        f"{title}, with 95% intervals"
        if any(end is not None for end in ends)
        else f"{title} (no intervals)"
    )


def literal(text: str) -> str:
    """A name for a label as `one_line`, with dollar signs escaped, which would begin a formula."""
    return one_line(text).replace("$", r"\$")


# Okabe and Ito's palette, which colour-blind readers can distinguish; DataParallel's phases have
# further colours with a contrast of at least 3:1 on white and on the page's dark background.
COLOURS = {
    "compute": "#0072B2",
    "exposed": "#D55E00",
    "hidden": "#E69F00",
    "idle": "#BBBBBB",
    "host_to_device": "#CC79A7",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "optimizer": "#009E73",
    "data": "#999999",
    "scatter": "#C77C3A",
    "replicate": "#B5366F",  # the phase; the strategy of that name has the same colour
    "parallel_apply": "#4F97C4",
    "gather": "#7F8F2A",
    "loss_backward": "#0072B2",
    "gradient_reduce": "#8C6BD1",
    "host_copies": "#CC79A7",
    "wait": "#CC6677",
    "whole": "#777777",
    **{name: traits.colour for name, traits in STRATEGIES.items()},
    "transfer": "#009E73",
    "same_local_batch": "#CC79A7",
    "ideal_split": "#8C6BD1",
    "same_total": "#999999",
    "ring": "#56B4E9",
    "predicted": "#882255",
    "target": "#009E73",
    "tracer": "#999999",
}
