"""Reading a table of values that people derived from epoch times: a CSV file as `dpscope estimate` reads them."""

from pathlib import Path
from typing import NamedTuple

from dpscope.analysis.epoch_times.csv_rows import CsvRow, read_rows

CLAIM_COLUMNS = ("quantity", "method", "printed_value", "unit")
"""Needed; study, run, strategy, batch_size and devices may be absent."""


class Claim(NamedTuple):
    """One value somebody derived, as printed, and the method that gives its digits; None is unknown."""

    study: str | None
    run: str | None
    strategy: str | None
    quantity: str
    method: str
    batch_size: int | None
    devices: int | None
    printed_value: str
    unit: str

    @property
    def value(self) -> float:
        """The printed number, in `unit`."""
        return float(self.printed_value)


def read_claims(path: Path) -> list[Claim]:
    """Read and check a table of derived values; raises DpscopeError for anything that cannot be read as one."""
    return [_claim(row) for row in read_rows(path, CLAIM_COLUMNS)[1]]


def _claim(row: CsvRow) -> Claim:
    printed = row.required_text("printed_value")
    row.decimal("printed_value", lambda value: True, "the number as it was printed")
    strategy = row.text("strategy")
    return Claim(
        study=row.text("study"),
        run=row.text("run"),
        strategy=strategy.lower() if strategy else None,
        quantity=row.required_text("quantity"),
        method=row.required_text("method"),
        batch_size=row.whole("batch_size"),
        devices=row.whole("devices"),
        printed_value=printed,
        unit=row.required_text("unit"),
    )
