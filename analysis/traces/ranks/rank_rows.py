"""A table of several ranks, one below the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpscope.analysis.traces.reading.event_table import IntColumn
from dpscope.analysis.traces.reading.table import Table, joined


@dataclass(frozen=True)
class RankRows:
    """The rows of all ranks, one rank after the other, and how many each has."""

    table: Table
    lengths: IntColumn

    @classmethod
    def of_ranks(cls, tables: Sequence[Table], columns: Sequence[str]) -> "RankRows":
        """A table of each rank; one without rows needs no columns."""
        empty = Table.of(**dict.fromkeys(columns, ()))
        lengths = np.array([len(table) for table in tables], dtype=np.int64)
        return cls(joined([empty, *tables]), lengths)

    @classmethod
    def joined(cls, parts: "Sequence[RankRows]") -> "RankRows":
        """The ranks of these tables, one after the other."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(joined([part.table for part in parts]), lengths)

    def take(self, ranks: IntColumn) -> "RankRows":
        """The ranks at these places, in this order."""
        starts = np.cumsum(self.lengths) - self.lengths
        lengths = self.lengths[ranks]
        taken_before = np.cumsum(lengths) - lengths
        shift = np.repeat(starts[ranks] - taken_before, lengths)
        rows = shift + np.arange(lengths.sum())
        return RankRows(self.table.take(rows), lengths)

    @property
    def owners(self) -> IntColumn:
        """The place of each row's rank."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)
