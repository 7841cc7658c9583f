"""`examples/published/cell_values.csv`: the published times and derived values by cell, as
`--published` reads them.

`python docs/_tools/cell_values.py`, in the repository's root, writes it from the tables beside it.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec

from dpscope.analysis import EpochTime, read_epoch_times
from dpscope.profiling.records.run import PublishedQuantity, PublishedValue
from dpscope.profiling.store.files import write_text

EXAMPLES = Path("examples/published")
_DATA = {"CIFAR-10": "cifar10"}
_MODELS = {"resnet18_torchvision": "resnet18"}  # 1,000 outputs there and here
_QUANTITIES = {"bandwidth": "effective_bandwidth", "best_test_accuracy": "test_accuracy"}
# a union of literals
_MEASURED = {name for part in get_args(PublishedQuantity) for name in get_args(part) or (part,)}
_STRATEGIES = ("single", "dp", "ddp")


def cell_values(
    times: Sequence[EpochTime], claims: Sequence[Mapping[str, str]]
) -> Iterator[PublishedValue]:
    """What is of one cell and of a quantity that dpscope measures; an epoch that ran out of memory
    has no value.
    """
    for row in times:
        if row.epoch_seconds is not None:
            yield from _of_row(
                row, row.run, "epoch_seconds", row.epoch_seconds, "s", f"timed: {row.provenance}"
            )
    for claim in claims:
        quantity = _QUANTITIES.get(claim["quantity"], claim["quantity"])
        if quantity in _MEASURED:
            rows = [row for row in times if _speaks_of(claim, row)]
            # of runs at the same setting, the first: they are of the same cell
            for row in rows[:1]:
                value = float(claim["printed_value"])
                yield from _of_row(
                    row, claim["run"] or None, quantity, value, claim["unit"], claim["method"]
                )


def _speaks_of(claim: Mapping[str, str], row: EpochTime) -> bool:
    setting = (claim["study"], claim["batch_size"], claim["devices"])
    return setting == (row.study, str(row.batch_size), str(row.devices)) and claim["run"] in (
        "",
        row.run,
    )


def _of_row(
    row: EpochTime, run: str | None, quantity: str, value: float, unit: str, method: str
) -> Iterator[PublishedValue]:
    """The value as of one cell; none where a global batch does not divide, or the strategy is none
    of dpscope's.
    """
    batch_size = row.local_batch if row.batch_size_is == "global" else row.batch_size
    if row.strategy not in _STRATEGIES or batch_size is None:
        return
    value_of_cell = {
        "source": ", ".join(name for name in (row.study, run) if name),
        "hardware": row.hardware or "",
        "model": _MODELS.get(row.model or "", row.model or ""),
        "data": _DATA.get(row.dataset or "", row.dataset or ""),
        "strategy": row.strategy,
        "devices": row.devices,
        "batch_size": batch_size,
        "fixed": row.batch_size_is,
        "quantity": quantity,
        "value": value,
        "unit": unit,
        "method": method,
    }
    yield msgspec.convert(value_of_cell, PublishedValue)


def read_claims(path: Path) -> list[dict[str, str]]:
    """The derived values, by column."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def as_csv(values: Iterator[PublishedValue]) -> str:
    """A heading row and a row per value."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, PublishedValue.__struct_fields__, lineterminator="\n")
    writer.writeheader()
    writer.writerows(msgspec.structs.asdict(value) for value in values)
    return text.getvalue()


def main() -> None:
    """Write the table."""
    times, claims = (
        read_epoch_times(EXAMPLES / "epoch_times.csv"),
        read_claims(EXAMPLES / "derived_values.csv"),
    )
    write_text(EXAMPLES / "cell_values.csv", as_csv(cell_values(times.rows, claims)))


if __name__ == "__main__":
    main()
