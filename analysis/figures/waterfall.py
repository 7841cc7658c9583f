"""The gap between DP and DDP as a waterfall from DDP's step to DP's."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.cells.comparison import Comparison, StrategyGap
from dpscope.analysis.cells.waterfall import WaterfallPart, gap_parts
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.runs.run_data import RunData
from dpscope.analysis.stats.samples import Estimate, median_estimate
from dpscope.analysis.text.units import Unit, choose_unit, show_time

MOST_GAPS = 3


def waterfall(run: RunData, comparison: Comparison) -> Figure | None:
    """A panel for each of the first MOST_GAPS gaps with known parts, the largest device counts and batches first."""
    ordered = sorted(comparison.gaps, key=lambda gap: (gap.devices, gap.batch_size), reverse=True)
    known = [(gap, parts) for gap in ordered if (parts := gap_parts(run, comparison, gap))][:MOST_GAPS]
    if not known:
        return None
    rows = [len(parts) + 2 for _, parts in known]
    figure = Figure(figsize=(7.5, 0.9 * len(known) + 0.27 * sum(rows)), layout="constrained")
    panels = figure.subplots(len(known), 1, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (gap, parts) in zip(panels, known, strict=True):
        _panel(axes, run, gap, parts)
    return figure


def _panel(axes: Axes, run: RunData, gap: StrategyGap, parts: Sequence[WaterfallPart]) -> None:
    spread = run.spreads.step
    dp, ddp = (median_estimate(run.cells[name].step_samples(), spread) for name in (gap.dp, gap.ddp))
    unit = choose_unit("time", [dp.value, ddp.value])
    labels = [gap.ddp, *(part.label for part in parts), gap.dp]
    _whole(axes, 0, ddp, unit)
    at = (ddp.value or 0.0) / unit.divisor
    for index, part in enumerate(parts, 1):
        change = part.gap_us / unit.divisor
        hatch = None if gap.explained else "///"
        axes.barh(
            index,
            change,
            left=at,
            color=COLOURS[part.key],
            height=0.7,
            hatch=hatch,
            alpha=1.0 if gap.explained else 0.5,
        )
        end = max(at, at + change)
        axes.annotate(
            f"{'+' if change >= 0 else '−'}{show_time(abs(part.gap_us))}", (end, index), xytext=(3, 0),
            textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
        axes.plot([at + change] * 2, [index - 0.35, index + 1.35], color="#777777", linewidth=0.7)
        at += change
    _whole(axes, len(parts) + 1, dp, unit)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(f"time per step [{unit.label}]; whiskers: 95% interval of the median untraced step")
    axes.set_title(_title(gap), loc="left")


def _title(gap: StrategyGap) -> str:
    title = f"From DDP's step to {gap.dp_label}'s: {gap.devices} devices, batch {gap.batch_size}"
    return (
        title
        if gap.explained
        else f"{title}\nTracing changed the timing too much for\nthe hatched parts to explain the gap"
    )


def _whole(axes: Axes, row: int, step: Estimate, unit: Unit) -> None:
    value = (step.value or 0.0) / unit.divisor
    spread = None
    if step.low is not None and step.high is not None:
        spread = [[value - step.low / unit.divisor], [step.high / unit.divisor - value]]
    axes.barh(
        row, value, color=COLOURS["whole"], height=0.7, xerr=spread,
        error_kw={"ecolor": "#777777", "elinewidth": 1.0, "capsize": 2},
    )  # fmt: skip
