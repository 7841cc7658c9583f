"""How wrong `dpscope estimate --predict` is on public series of step times that were held out.
Prints a line for each series.
"""

import sys
from collections import Counter
from pathlib import Path

import numpy as np

from dpscope.analysis.epoch_times.predict import predictions
from dpscope.analysis.epoch_times.table import EpochTable, read_epoch_times

SERIES = Path(__file__).resolve().parents[1] / "tests" / "data" / "scaling"


def main() -> None:
    sys.stdout.write(
        "series, fitted on -> predicted: with a number | median error (worst) | inside the band | half width\n"
    )
    for name in ("cifar10", "imagenet"):
        table = read_epoch_times(SERIES / f"ddp_t4_{name}.csv")
        for most, first, last in (
            (8, 9, 16),
            (8, 16, 16),
            (4, 5, 8),
            (4, 9, 16),
            (2, 3, 4),
            (2, 5, 8),
        ):
            _print_scores(f"T4 {name}", table, most, first, last)
    table = read_epoch_times(SERIES / "ddp_v100_pytorch_benchmark.csv")
    for model in ("resnet50", "resnet101"):
        _print_scores(f"V100 {model}", table.of_study(f"model {model}, bucket_mb 25"), 4, 8, 8)
    for most in (4, 6, 7):
        _print_scores("all-reduce, A100", _collectives(), most, 8, 8)


def _collectives() -> EpochTable:
    """The times of all-reduces by size, in place of steps by batch."""
    lines = (SERIES / "nccl_allreduce_a100_nvswitch.csv").read_text().splitlines()[1:]
    row = read_epoch_times(SERIES / "ddp_v100_pytorch_benchmark.csv").rows[-1]
    rows = []
    for line in lines:
        ranks, size, microseconds, _ = line.split(",")
        place = row._replace(devices=int(ranks), batch_size=int(size), nodes=1)
        rows.append(place._replace(epoch_seconds=float(microseconds) / 1e6, resolution_s=None))
    return EpochTable(tuple(rows), of_steps=True)


def _print_scores(name: str, table: EpochTable, most: int, first: int, last: int) -> None:
    held = [row for row in table.rows if first <= row.devices <= last]
    kept = table._replace(rows=tuple(row for row in table.rows if row.devices <= most))
    layouts = sorted({(row.devices, row.nodes or 1) for row in held})
    found = {
        (one.study, one.batch_size, one.devices, one.nodes): one
        for one in predictions(kept, layouts)
    }
    pairs = [(found[row.study, row.batch_size, row.devices, row.nodes or 1], row) for row in held]
    numbers = [
        (one.value, one.low, one.high, 1e3 * (row.epoch_seconds or 0.0))
        for one, row in pairs
        if one.value is not None
    ]
    value, low, high, true = np.array(numbers, dtype=float).reshape(-1, 4).T
    off = np.abs(value / true - 1)
    laws = Counter(one.law for one, _ in pairs if one.law)
    scores = (
        f"{100 * np.median(off):.1f}% ({100 * off.max():.1f}%) | {100 * np.mean((low <= true) & (true <= high)):.0f}% | "
        f"{100 * np.median((high - low) / 2 / value):.1f}% | {dict(laws)}"
    )
    sys.stdout.write(
        f"{name}, up to {most} -> {first} to {last}: {len(numbers)} of {len(held)} | {scores}\n"
    )


if __name__ == "__main__":
    main()
