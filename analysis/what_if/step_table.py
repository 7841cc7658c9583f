"""Measured step times as a CSV table, one row per configuration, and the series of rows that measure the same thing.

Columns, in any order: `ranks` and `step_ms`; `batch_per_rank` (samples per device and step); `nodes`, `ranks_per_node` or
`gpus_per_node` (the devices of each node as digits: 134 is 1 + 3 + 4; or one number for all nodes); `sync_ms`, exposed
communication where it was measured; `strategy`, where `single` is a run without DistributedDataParallel. Every other column is a
setting, such as a model or a network: rows are compared only where all settings agree.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpscope.analysis.text.csv_rows import CsvRow, read_rows
from dpscope.analysis.what_if.prediction import Prediction
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import nearest
from dpscope.profiling.store.errors import DpscopeError

Identity = tuple[tuple[str, str], ...]

LINKS = ("within a node", "between nodes")
_PLACED_BY = ("nodes", "ranks_per_node", "gpus_per_node")
_KNOWN = frozenset(("ranks", "step_ms", "batch_per_rank", "sync_ms", "strategy", "busbw_gb_per_s", *_PLACED_BY))
_MISSPELT = 0.85  # likeness of a column to a known one from which it is taken for that
_MOST_PER_NODE = 32  # devices on one node
_LONGEST_MS = 1e9


@dataclass(frozen=True)
class MeasuredStep:
    """One row: times in microseconds, with `step_us` 0 and `sync_us` None where missing; `identity` holds the settings."""

    ranks: int
    nodes: int
    most_per_node: int  # ranks on one node
    batch_size: int  # per rank and step; 0 where the table has none
    step_us: float
    sync_us: float | None
    single: bool  # one device without DistributedDataParallel
    identity: Identity = ()
    placed: bool = True  # False where the table does not say which devices share a node; all are assumed to be on one

    @property
    def link(self) -> int:
        """The index in LINKS of the link that the gradients cross."""
        return int(self.nodes > 1)

    @property
    def unanswered(self) -> Prediction:
        """The prediction of this configuration, without a number."""
        return Prediction(self.ranks, self.nodes, self.batch_size or None)


def read_step_table(path: Path, times: bool = True) -> list[MeasuredStep]:
    """The rows of a CSV file in their order. Without `times`, times may be missing.

    Raises DpscopeError with the file, row and column of what cannot be read.
    """
    headings, rows = read_rows(path, ("ranks",), _KNOWN)
    if times and "step_ms" not in headings:
        found = ", ".join(headings)
        raise DpscopeError(f"{path} has no column step_ms (found: {found}); give each step's time in milliseconds")
    settings = [name for name in headings if name not in _KNOWN]
    for name in settings:
        if likely := nearest(name, _KNOWN - set(headings), cutoff=_MISSPELT):
            raise DpscopeError(
                f"{path}: column {name} is no measure; did you mean {likely[0]}? If it is a setting, rename it"
            )
    return [_measured(row, settings, times) for row in rows]


def _measured(row: CsvRow, settings: Sequence[str], times: bool) -> MeasuredStep:
    ranks = row.required_whole("ranks")
    step_ms = row.decimal("step_ms", lambda ms: 1e-6 <= ms <= _LONGEST_MS, "milliseconds above 0")
    sync_ms = row.decimal("sync_ms", lambda ms: 0 <= ms <= _LONGEST_MS, "milliseconds from 0 on")
    if times:
        row.required("step_ms", step_ms)
    if step_ms and sync_ms is not None and sync_ms > step_ms:
        raise row.error("sync_ms", f"is more than step_ms {step_ms:g}, which includes it; give both in milliseconds")
    strategy = (row.text("strategy") or "").lower()
    traits = traits_of(strategy)
    if traits.baseline and ranks > 1:
        raise row.error("ranks", "for strategy single; single is one device, name the strategy of the others")
    other = () if not strategy or traits.baseline or traits.reducer else (("strategy", strategy),)
    return MeasuredStep(
        ranks,
        *_nodes(row, ranks),
        batch_size=row.whole("batch_per_rank") or 0,
        step_us=1e3 * (step_ms or 0.0),
        sync_us=None if sync_ms is None else sync_ms * 1e3,
        single=traits.baseline or (ranks == 1 and not strategy),
        identity=(*other, *((name, row.cells[name]) for name in settings)),
        placed=any(row.text(name) for name in _PLACED_BY),
    )


def _nodes(row: CsvRow, ranks: int) -> tuple[int, int]:
    """The number of nodes, and the largest number of ranks on one of them."""
    nodes, each = row.whole("nodes"), row.whole("ranks_per_node")
    digits = (row.text("gpus_per_node") or "").removesuffix(".0")  # a spreadsheet's column of numbers with gaps
    by_node = [int(digit) for digit in digits] if digits.isdecimal() else []
    if len(by_node) > 1 and 0 not in by_node and sum(by_node) == ranks and nodes in (None, len(by_node)):
        return len(by_node), max(by_node)
    per_node = int(digits) if digits.isdecimal() else 0
    if digits and not 0 < per_node <= max(_MOST_PER_NODE, ranks):  # 16 devices fit on a node that holds 7 ranks
        raise row.error("gpus_per_node", "does not match ranks and nodes; give a digit per node, or one number for all")
    each = min(each or (0 if nodes else per_node) or -(-ranks // (nodes or 1)), ranks)
    if nodes is not None and not nodes <= ranks <= nodes * each:
        raise row.error("nodes", f"cannot hold {counted(ranks, 'rank')}: each node has at least one, at most {each}")
    return nodes or -(-ranks // each), each


def series_of(rows: Sequence[MeasuredStep]) -> dict[Identity, list[MeasuredStep]]:
    """Rows by settings less results, in their order. A series without one device's rows takes those of empty or equal ones."""
    groups: dict[Identity, list[MeasuredStep]] = {}
    rows = _without(rows, _results(rows))
    for row in rows:
        groups.setdefault(row.identity, []).append(row)
    series = {}
    for identity, group in groups.items():
        counts = {row.ranks for row in group}
        if counts == {1} and any(other != identity and _is_part_of(identity, other) for other in groups):
            continue
        alone = [row for row in rows if row.ranks == 1 and _is_part_of(row.identity, identity)]
        series[identity] = group if 1 in counts else [*alone, *group]
    return series


def _is_part_of(general: Identity, identity: Identity) -> bool:
    """Whether each setting of `general` is empty or equal to that of `identity`."""
    return all(not value or dict(identity).get(name) == value for name, value in general)


def comparable(
    rows: Sequence[MeasuredStep], others: Sequence[MeasuredStep]
) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Two tables with the settings that both have. Columns with one value, and results, are dropped; a single batch is shared."""
    here, there = _settings(rows), _settings(others)
    constant = {name for name in here.keys() ^ there.keys() if len({*(here | there)[name]}) == 1}
    dropped = constant | _results(rows) | (_results(others) - here.keys())
    places = {name: place for place, name in enumerate(here)}  # columns may be arranged in another order
    others = [replace(row, identity=(*sorted(row.identity, key=lambda one: places.get(one[0], 0)),)) for row in others]
    if len(batches := {row.batch_size for row in rows}) == 1:
        others = [row if row.batch_size else replace(row, batch_size=min(batches)) for row in others]
    return _without(rows, dropped), _without(others, dropped)


def _results(rows: Sequence[MeasuredStep]) -> set[str]:
    """Columns that hold results rather than settings: none of their values occurs at two device counts."""
    counts, settings = [row.ranks for row in rows], _settings(rows).items()
    return {name for name, values in settings if 1 < len(set(values)) == len({*zip(values, counts, strict=True)})}


def _without(rows: Sequence[MeasuredStep], columns: Collection[str]) -> list[MeasuredStep]:
    return [replace(row, identity=tuple(one for one in row.identity if one[0] not in columns)) for row in rows]


def _settings(rows: Sequence[MeasuredStep]) -> dict[str, list[str]]:
    """The value of each setting in every row, empty where a row lacks it."""
    names = dict.fromkeys(name for row in rows for name, _ in row.identity)
    return {name: [dict(row.identity).get(name, "") for row in rows] for name in names}
