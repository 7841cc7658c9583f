"""The tables of all ranks of a job, joined from their rows in an order that depends on nothing but the ranks."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from dpscope.analysis.traces.ranks.rank_rows import TABLES, findings_of, summaries_of, table_of
from dpscope.analysis.traces.ranks.rank_tables import TraceSummary
from dpscope.profiling.records.finding import Finding


@dataclass(frozen=True)
class JobTables:
    """Every rank's tables one below the other, by rank; `summaries` are in the same order."""

    steps: pd.DataFrame
    collectives: pd.DataFrame
    dp_phases: pd.DataFrame
    exposed: pd.DataFrame
    copies: pd.DataFrame
    kernels: pd.DataFrame
    summaries: tuple[TraceSummary, ...]
    findings: tuple[Finding, ...]
    collective_owner: Any  # the summary that each collective is of, int64 array


def rows_in_order(rows: pa.Table) -> pa.Table:
    """Rows by rank, ranks that are not known last; rows of the same rank by their source."""
    ranks = rows.column("rank").to_pylist()
    sources = rows.column("source").to_pylist()
    order = sorted(range(rows.num_rows), key=lambda one: (ranks[one] is None, ranks[one] or 0, sources[one]))
    return rows if order == list(range(rows.num_rows)) else rows.take(pa.array(order))


def join_rows(rows: pa.Table) -> JobTables:
    """One job of rows that are in order."""
    tables = {name: table_of(rows, name) for name in TABLES}
    return JobTables(
        **{name: frame for name, (frame, _) in tables.items()},
        summaries=summaries_of(rows),
        findings=tuple(finding for found in findings_of(rows) for finding in found),
        collective_owner=np.asarray(tables["collectives"][1], dtype=np.int64),
    )
