"""Measured step times as a CSV table, one row per configuration, and the series of rows that measure the same thing.

Columns, in any order: `ranks` and `step_ms`; `batch_per_rank` (samples per device and step); `nodes`, `ranks_per_node` or
`gpus_per_node` (the devices of each node as digits: 134 is 1 + 3 + 4; or one number for all nodes); `sync_ms`, exposed
communication where it was measured; `strategy`, where `single` is a run without DistributedDataParallel. Every other column is a
setting, such as a model or a network: rows are compared only where all settings agree.
"""

import csv
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.strategies import traits_of
from dpscope.profiling.records.typed_text import nearest
from dpscope.profiling.store.errors import DpscopeError, unreadable

Identity = tuple[tuple[str, str], ...]

NUMBERS = ("ranks", "step_ms", "batch_per_rank", "nodes", "ranks_per_node", "sync_ms")
KNOWN = frozenset((*NUMBERS, "gpus_per_node", "strategy", "busbw_gb_per_s"))
_MISSING = ("", "na", "n/a", "nan", "none", "null", "-")
_MISSPELT = 0.85  # likeness of a column to a known one from which it is taken for that
_MOST_PER_NODE = 32  # devices on one node
_LARGEST = {"ms": 1e9, "count": 1e7}


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a job are: the number of nodes, and the largest number of ranks on one node."""

    ranks: int
    nodes: int
    most_per_node: int


@dataclass(frozen=True)
class MeasuredStep:
    """One row: times in microseconds, with `step_us` 0 and `sync_us` None where missing; `identity` holds the settings."""

    placement: Placement
    batch_size: int  # per rank and step; 0 where the table has none
    step_us: float
    sync_us: float | None
    single: bool  # one device without DistributedDataParallel
    identity: Identity = ()
    placed: bool = True  # False where the table does not say which devices share a node; all are assumed to be on one


def read_step_table(path: Path, times: bool = True) -> list[MeasuredStep]:
    """The rows of a CSV file in their order. Without `times`, times may be missing.

    Cells are separated by commas, semicolons (numbers may then have a decimal comma) or tabs. Raises DpscopeError with the file,
    row and column of what cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error
    except UnicodeDecodeError as error:
        raise DpscopeError(f"{path} is not a CSV table in UTF-8: {error.reason}; save it as UTF-8") from error
    numbered = enumerate(text.splitlines(), start=1)
    lines = [(number, line) for number, line in numbered if line.strip() and line[0] != "#"]
    if not lines:
        raise DpscopeError(f"{path} is not a CSV table: it is empty")
    separator = max(",;\t", key=lines[0][1].count)
    try:
        header, *rows = [next(csv.reader([line], delimiter=separator, strict=True)) for _, line in lines]
    except csv.Error as error:
        raise DpscopeError(f"{path} is not a CSV table: {error}; close every quotation mark on its line") from error
    columns = [name.strip().lower() if name.strip().lower() in KNOWN else name.strip() for name in header]
    missing = [name for name in ("ranks", "step_ms")[: 2 if times else 1] if name not in columns]
    if missing:
        other = [name for name in columns if name.lower() in ("step_s", "step_us", "step_time", "step")]
        unit = f"; give {other[0]} as step_ms, in milliseconds" if other and "step_ms" in missing else ""
        meant = [f"{near[0]!r} for {name}" for name in missing if (near := nearest(name, set(columns) - KNOWN))]
        hint = f"; did you mean {' and '.join(meant)}?" if meant and not unit else ""
        raise DpscopeError(
            f"{path} has no column {' and no '.join(missing)}; its columns are {', '.join(columns)}{unit}{hint}"
        )
    _check_misspelt(path, columns)
    if not rows:
        raise DpscopeError(f"{path} has no rows: give at least one measured step time")
    found = []
    for (number, _), values in zip(lines[1:], rows, strict=True):
        where = f"{path}, line {number}"
        if any(value.strip() for value in values[len(columns) :]):
            raise DpscopeError(f"{where} has {counted(len(values), 'cell')} for {counted(len(columns), 'column')}")
        row = dict(zip(columns, (value.strip() for value in [*values, *[""] * len(columns)]), strict=False))
        if separator == ";":
            row |= {name: row[name].replace(",", ".") for name in NUMBERS if name in row}
        found.append(_measured(row, where, times))
    return found


def _check_misspelt(path: Path, columns: Sequence[str]) -> None:
    """Raise DpscopeError for a column that is nearly a known one, which would be read as a setting that divides the rows."""
    for name in columns:
        if name not in KNOWN and (meant := nearest(name, KNOWN - set(columns), cutoff=_MISSPELT)):
            raise DpscopeError(
                f"{path}: column {name} is no measure; did you mean {meant[0]}? If it is a setting, rename it"
            )


def _measured(row: Mapping[str, str], where: str, times: bool) -> MeasuredStep:
    ranks = _count(row, "ranks", where)
    step_ms = _milliseconds(row, "step_ms", where, 1e-6) if times or _has(row, "step_ms") else 0.0
    sync_ms = _milliseconds(row, "sync_ms", where, 0.0) if _has(row, "sync_ms") else None
    if step_ms and sync_ms is not None and sync_ms > step_ms:
        raise DpscopeError(
            f"{where}: sync_ms {row['sync_ms']} is more than step_ms {row['step_ms']}, which includes it; give both in "
            "milliseconds"
        )
    strategy = row.get("strategy", "").lower()
    traits = traits_of(strategy)
    other = () if not strategy or traits.baseline or traits.reducer else (("strategy", strategy),)
    return MeasuredStep(
        placement=_placement(row, ranks, where),
        batch_size=_count(row, "batch_per_rank", where) if _has(row, "batch_per_rank") else 0,
        step_us=step_ms * 1e3,
        sync_us=None if sync_ms is None else sync_ms * 1e3,
        single=traits.baseline or (ranks == 1 and not strategy),
        identity=(*other, *((name, value) for name, value in row.items() if name not in KNOWN)),
        placed=any(_has(row, name) for name in ("nodes", "ranks_per_node", "gpus_per_node")),
    )


def _has(row: Mapping[str, str], name: str) -> bool:
    return row.get(name, "").lower() not in _MISSING


def _placement(row: Mapping[str, str], ranks: int, where: str) -> Placement:
    digits = row["gpus_per_node"] if _has(row, "gpus_per_node") else ""
    nodes = _count(row, "nodes", where) if _has(row, "nodes") else None
    if len(digits) > 1 and digits.isdigit() and "0" not in digits and sum(map(int, digits)) == ranks:
        if nodes in (None, len(digits)):
            return Placement(ranks, len(digits), max(map(int, digits)))
        if int(digits) > _MOST_PER_NODE:  # else 16 devices fit on a node that holds 7 ranks
            raise DpscopeError(
                f"{where}: gpus_per_node {digits} names {counted(len(digits), 'node')}, nodes says {nodes}"
            )
    if _has(row, "ranks_per_node"):
        each = min(_count(row, "ranks_per_node", where), ranks)
        return Placement(ranks, nodes or -(-ranks // each), each)
    if nodes is None:
        each = int(digits) if digits.isdigit() and 0 < int(digits) < ranks else ranks
        return Placement(ranks, -(-ranks // each), each)
    if nodes > ranks:
        raise DpscopeError(
            f"{where}: {counted(nodes, 'node')} for {counted(ranks, 'rank')}; every node holds one rank or more"
        )
    return Placement(ranks, nodes, -(-ranks // nodes))


def _count(row: Mapping[str, str], name: str, where: str) -> int:
    value = _number(row[name])
    if value is None or not 1 <= value <= _LARGEST["count"] or value != int(value):
        raise DpscopeError(f"{where}: {name} is {row[name]!r}; give a whole number of 1 or more")
    return int(value)


def _milliseconds(row: Mapping[str, str], name: str, where: str, least: float) -> float:
    value = _number(row[name])
    if value is None or not least <= value <= _LARGEST["ms"]:
        raise DpscopeError(f"{where}: {name} is {row[name]!r}; give milliseconds above 0")
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def series_of(rows: Sequence[MeasuredStep]) -> dict[Identity, list[MeasuredStep]]:
    """Rows by settings, in their order. A series without one device's rows takes those whose settings are empty or equal."""
    found: dict[Identity, list[MeasuredStep]] = {}
    for row in rows:
        found.setdefault(row.identity, []).append(row)
    alone = [row for row in rows if row.placement.ranks == 1]
    completed = {}
    for identity, mine in found.items():
        only_alone = all(row.placement.ranks == 1 for row in mine)
        if only_alone and any(other != identity and _is_part_of(identity, other) for other in found):
            continue
        has_alone = any(row.placement.ranks == 1 for row in mine)
        completed[identity] = (
            mine if has_alone else [*(row for row in alone if _is_part_of(row.identity, identity)), *mine]
        )
    return completed


def _is_part_of(general: Identity, identity: Identity) -> bool:
    """Whether each setting of `general` is empty or equal to that of `identity`."""
    return all(not value or dict(identity).get(name) == value for name, value in general)


def comparable(
    rows: Sequence[MeasuredStep], others: Sequence[MeasuredStep]
) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Two tables with the settings that both have. Columns with one value, and results, are dropped; a single batch is shared."""
    mine, theirs = _values(rows), _values(others)
    dropped = measures(rows)
    dropped |= {name for name, values in mine.items() if name not in theirs and len(set(values)) == 1}
    for name, values in theirs.items():
        numbers = all(_number(value) is not None for value in values if value)
        if name not in mine and (len(set(values)) == 1 or (numbers and 2 * len(set(values)) > len(values))):
            dropped.add(name)
    kept, asked = without(rows, dropped), without(others, dropped)
    batches = {row.batch_size for row in rows}
    if len(batches) == 1:
        asked = [row if row.batch_size else replace(row, batch_size=min(batches)) for row in asked]
    return kept, asked


def measures(rows: Sequence[MeasuredStep]) -> set[str]:
    """Columns that are results rather than settings: no value of theirs occurs at two device counts."""
    found = set()
    for name, values in _values(rows).items():
        counts: dict[str, set[int]] = {}
        for row, value in zip(rows, values, strict=True):
            counts.setdefault(value, set()).add(row.placement.ranks)
        if len(counts) > 1 and all(len(of) == 1 for of in counts.values()):
            found.add(name)
    return found


def without(rows: Sequence[MeasuredStep], columns: Collection[str]) -> list[MeasuredStep]:
    """The rows without some columns."""
    return [replace(row, identity=tuple(one for one in row.identity if one[0] not in columns)) for row in rows]


def _values(rows: Sequence[MeasuredStep]) -> Mapping[str, list[str]]:
    names = dict.fromkeys(name for row in rows for name, _ in row.identity)
    return {name: [dict(row.identity).get(name, "") for row in rows] for name in names}
