"""Bus bandwidth by message size in the traces, with the calibration's fit, the ring's bound and the link's rate."""

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpscope.analysis.costs.calibration_fit import find_fit
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.figures.calibration import draw_models
from dpscope.analysis.figures.colours import COLOURS
from dpscope.analysis.figures.style import MARKERS, bandwidth_axes
from dpscope.analysis.runs.run_data import RunData
from dpscope.profiling.records.finding import counted

MOST_PANELS = 4
_LEAST_DECADES = 1.0  # an axis of one size is drawn this wide


def bandwidths(run: RunData, sources: CostSources) -> Figure | None:
    """A panel for each collective and number of ranks with matched transfers, the most bytes first; None without any."""
    transfers = matched_transfers(run)
    if transfers.empty:
        return None
    groups = list(transfers.groupby(["kind", "group_size"]))
    groups = sorted(groups, key=lambda group: -float(group[1]["bytes"].sum()))[:MOST_PANELS]
    columns = min(2, len(groups))
    rows = -(-len(groups) // columns)
    figure = Figure(figsize=(7.5, 0.8 + 2.9 * rows), layout="constrained")
    for index, ((kind, _), own) in enumerate(groups):
        _panel(figure.add_subplot(rows, columns, index + 1), str(kind), int(own["group_size"].iloc[0]), own, sources)
    once: dict[str, Artist] = {}
    for axes in figure.axes:
        once |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    figure.legend(list(once.values()), list(once), loc="outside lower center", ncols=3)
    figure.suptitle("Bus bandwidth by message size: median, and range over transfers", x=0.01, ha="left", fontsize=11)
    return figure


def matched_transfers(run: RunData) -> pd.DataFrame:
    """Each matched collective of a whole step once, with its cell: cell, kind, moved_as, group_size, bytes, busbw_gb_per_s."""
    parts = []
    for data in run.measured:
        if data.collectives.empty or not data.communication_known:
            continue
        keys = ["repeat", "rank", "step"]
        own = data.collectives.merge(data.whole_windows[keys].drop_duplicates(), on=keys)
        known = own[own["busbw_gb_per_s"].notna() & own["bytes"].notna() & own["match"].notna()]
        parts.append(known.drop_duplicates(["repeat", "match"]).assign(cell=data.cell.name))
    parts = [
        part.assign(moved_as=part["moved_as"].fillna(part["kind"]) if "moved_as" in part else part["kind"])
        for part in parts
    ]
    names = ["cell", "kind", "moved_as", "group_size", "bytes", "busbw_gb_per_s"]
    kept = [part[names] for part in parts if len(part)]
    return pd.concat(kept, ignore_index=True) if kept else pd.DataFrame(columns=names)


def _panel(axes: Axes, kind: str, ranks: int, own: pd.DataFrame, sources: CostSources) -> None:
    for index, (cell, rows) in enumerate(own.groupby("cell", sort=False)):
        rates = rows.groupby("bytes")["busbw_gb_per_s"].agg(["median", "min", "max"]).astype(float)
        sizes = rates.index.to_numpy(dtype=float)
        spread = [rates["median"] - rates["min"], rates["max"] - rates["median"]]
        axes.errorbar(
            sizes, rates["median"], yerr=np.array(spread), fmt=MARKERS[index % len(MARKERS)], markersize=5, capsize=2,
            color=COLOURS["transfer"], mfc=COLOURS["transfer"] if index == 0 else "none", label=f"trace, {cell}",
        )  # fmt: skip
    calibration = sources.calibrated(ranks)
    fit = find_fit(calibration, kind, ranks) if calibration is not None else None
    link = sources.link(ranks) or (calibration.links.get(ranks) if calibration is not None else None)
    sizes_drawn = _size_range(own["bytes"].astype(float))
    draw_models(axes, sizes_drawn, str(own["moved_as"].iloc[0]), ranks, fit, link)
    axes.set_xlim(*sizes_drawn)
    bandwidth_axes(axes)
    axes.set_title(f"{kind}, {counted(ranks, 'rank')}", loc="left", fontsize=9)


def _size_range(sizes: "pd.Series[float]") -> tuple[float, float]:
    """A little more than the range of the sizes, so that a curve is visible next to a single one."""
    low, high = np.log10(float(sizes.min())), np.log10(float(sizes.max()))
    beyond = max(0.15, (_LEAST_DECADES - (high - low)) / 2)
    return 10 ** (low - beyond), 10 ** (high + beyond)
