"""The three classic tables of data-parallel studies, rows devices x columns batch per device, with what they leave unsaid.

1. epoch seconds and speedup; 2. compute and communication, measured beside each estimate; 3. bandwidth and utilisation.
"""

from collections.abc import Callable

import pandas as pd

from dpscope.analysis.comparison.compare import Comparison
from dpscope.analysis.runs.run_data import CellData, RunData
from dpscope.analysis.text.text_table import TextTable
from dpscope.analysis.text.units import NA

Row = pd.Series  # of the comparison table
Value = Callable[[CellData, Row], float | None]


def classic_tables(run: RunData, comparison: Comparison) -> list[TextTable]:
    """The three tables; times per epoch in seconds, per step in milliseconds, bandwidth in GB/s."""
    return [
        _epoch_table(run, comparison),
        _communication_table(run, comparison),
        _bandwidth_table(run, comparison),
    ]


def epoch_seconds(data: CellData) -> tuple[float | None, bool]:
    """Seconds per epoch and whether whole epochs were timed; else the step's median times the steps of an epoch."""
    epochs = []
    for repeat in dict.fromkeys(repeat for repeat, _ in data.ranks):
        blocks = zip(*(rank.blocks for number, rank in data.ranks if number == repeat), strict=False)
        epochs += [max(block.duration_s for block in ranks) for ranks in blocks if ranks[0].epoch is not None]
    if epochs:
        return sum(epochs) / len(epochs), True
    samples = data.step_samples()
    if not samples or not data.ranks:
        return None, False
    median_us = float(pd.concat([pd.Series(repeat) for repeat in samples]).median())
    return median_us * data.ranks[0][1].steps_per_epoch / 1e6, False


def _epoch_table(run: RunData, comparison: Comparison) -> TextTable:
    seconds = {data.cell.name: epoch_seconds(data) for data in run.measured}
    single = {
        (data.cell.batch_size, data.cell.options.accumulate): seconds[data.cell.name][0]
        for data in run.measured
        if data.cell.strategy == "single"
    }
    measured = [whole for value, whole in seconds.values() if value is not None]

    def speedup(data: CellData, _: Row) -> float | None:
        base = single.get((data.cell.batch_size, data.cell.options.accumulate))
        own = seconds[data.cell.name][0]
        return base / own if base is not None and own else None

    return _grid(
        "Epoch seconds and speedup",
        run,
        comparison,
        {
            "epoch [s]": (lambda data, _: seconds[data.cell.name][0], 2),
            "speedup T_1(b)/T_N(b)": (speedup, 2),
        },
        [
            "epoch seconds are measured whole epochs"
            if measured and all(measured)
            else "epoch seconds are median step time x steps per epoch, not a measured epoch",
            "speedup compares epochs at the same batch per device (weak scaling); it already counts the N devices",
        ],
    )


def _communication_table(run: RunData, comparison: Comparison) -> TextTable:
    columns = {
        "compute [ms]": "compute_us",
        "communication, measured [ms]": "communication_us",
        "exposed, measured [ms]": "exposed_us",
        "estimate t_N(b)-t_1(b) [ms]": "same_local_batch_us",
        "estimate t_N-t_1(G)/N [ms]": "ideal_split_us",
        "estimate t_N-t_1(G) [ms]": "same_total_us",
    }
    return _grid(
        "Compute and communication per step, measured beside each estimate",
        run,
        comparison,
        {name: (_column(column, 1e3), 2) for name, column in columns.items()},
        ["measured: means over ranks, devices and traced steps; estimates: from untraced medians"],
    )


def _bandwidth_table(run: RunData, comparison: Comparison) -> TextTable:
    def utilisation(_: CellData, row: Row) -> float | None:
        share = row["transfer_of_link"]
        return 100 * float(share) if pd.notna(share) else None

    links = sorted({float(rate) for rate in comparison.table["link_gb_per_s"].dropna()})
    return _grid(
        "Bandwidth and utilisation",
        run,
        comparison,
        {
            "algbw [GB/s]": (_column("algbw_gb_per_s", 1.0), 3),
            "busbw [GB/s]": (_column("busbw_gb_per_s", 1.0), 3),
            "utilisation [%]": (utilisation, 1),
        },
        [
            f"utilisation: busbw / {', '.join(f'{rate:.4g}' for rate in links)} GB/s"
            if links
            else "utilisation needs the link's bandwidth: give --link",
            "of all-reduces only: DataParallel runs none",
        ],
    )


def _column(name: str, divisor: float) -> Value:
    def value(_: CellData, row: Row) -> float | None:
        return float(row[name]) / divisor if pd.notna(row[name]) else None

    return value


def _grid(
    title: str, run: RunData, comparison: Comparison, quantities: dict[str, tuple[Value, int]], notes: list[str]
) -> TextTable:
    """Rows strategy (with its variant), devices and quantity; a column per batch size."""
    by_key = {
        (f"{data.cell.strategy} {data.cell.variant}".strip(), data.cell.devices, data.cell.batch_size): data
        for data in run.measured
    }
    batches = sorted({key[2] for key in by_key})
    by_cell = {str(row["cell"]): row for _, row in comparison.table.iterrows()}
    rows = []
    for strategy, devices in dict.fromkeys(key[:2] for key in by_key):
        for quantity, (value, digits) in quantities.items():
            entries = []
            for batch in batches:
                data = by_key.get((strategy, devices, batch))
                number = value(data, by_cell[data.cell.name]) if data is not None else None
                entries.append(NA if number is None else f"{number:.{digits}f}")
            if any(entry != NA for entry in entries):
                rows.append((strategy, str(devices), quantity, *entries))
    headings = ("strategy", "devices", "quantity", *(f"b = {batch}" for batch in batches))
    return TextTable(title, headings, tuple(rows), (*notes, "b: batch per device"))
