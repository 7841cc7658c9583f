"""Measured step times as a table: one row a configuration, as people publish them or write them down.

Columns, in any order: `ranks` and `step_ms`; `batch_per_rank` (samples per device and step); `nodes`, or `ranks_per_node`, or
`gpus_per_node` (the devices of each node as digits: ``134`` is 1 + 3 + 4, also a single number of all); `sync_ms`, the exposed
communication, where it was measured; `strategy`, of which ``single`` is a run without DistributedDataParallel. Every other column
may tell measurements of different things apart (a model, a network): rows are only compared where all of them are equal.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpscope.profiling.store.errors import DpscopeError, unreadable

NUMBERS = ("ranks", "step_ms", "batch_per_rank", "nodes", "ranks_per_node", "sync_ms")
KNOWN = frozenset((*NUMBERS, "gpus_per_node", "strategy", "busbw_gb_per_s"))
"""Columns that mean something here; every other one may tell series apart."""
_NEEDED = ("ranks", "step_ms")
_MISSING = ("", "na", "n/a", "nan", "none", "null", "-")
_LARGEST_COUNT = 10_000_000
_MOST_PER_NODE = 32  # devices that one node holds, at most
_LARGEST_MS = 1e9  # eleven days


@dataclass(frozen=True)
class Placement:
    """Where the ranks of a job are: how many nodes, and the most of them on one node."""

    ranks: int
    nodes: int
    most_per_node: int


@dataclass(frozen=True)
class MeasuredStep:
    """One row: `identity` is what else tells it apart, by column; microseconds, 0 where the step is unknown, None `sync_us`."""

    placement: Placement
    batch_size: int  # per rank and step; 0 where the table has none
    step_us: float
    sync_us: float | None
    single: bool  # one device without DistributedDataParallel
    identity: tuple[tuple[str, str], ...] = ()
    placed: bool = True  # False where the table does not say which devices share a node: all are taken to be on one


def read_step_table(path: Path, times: bool = True) -> list[MeasuredStep]:
    """The rows of a CSV file in their order; without `times` the times may be missing (they are 0 then).

    Cells are parted by commas, by semicolons (numbers may have a decimal comma then) or by tabs. Raises DpscopeError naming file,
    row and column of what cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error
    except UnicodeDecodeError as error:
        raise DpscopeError(f"{path} is no CSV table in UTF-8: {error.reason}; save it as UTF-8") from error
    lines = [
        (number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip() and line[0] != "#"
    ]
    if not lines:
        raise DpscopeError(f"{path} is no CSV table: it is empty")
    separator = max(",;\t", key=lines[0][1].count)
    try:
        cells = [next(csv.reader([line], delimiter=separator, strict=True)) for _, line in lines]
    except csv.Error as error:
        raise DpscopeError(f"{path} is no CSV table: {error}; close every quotation mark on its line") from error
    columns = _columns(cells[0])
    needed = _NEEDED if times else _NEEDED[:1]
    lacking = [name for name in needed if name not in columns]
    if lacking:
        raise DpscopeError(
            f"{path} has no column {' and no '.join(lacking)}; its columns are {', '.join(columns)}"
            + _other_unit(columns)
        )
    if len(cells) == 1:
        raise DpscopeError(f"{path} has no rows: give at least one measured step time")
    found = []
    for (number, _), values in zip(lines[1:], cells[1:], strict=True):
        where = f"{path}, line {number}"
        if any(value.strip() for value in values[len(columns) :]):
            raise DpscopeError(f"{where} has {len(values)} cells for {len(columns)} columns")
        row = dict(zip(columns, (value.strip() for value in [*values, *[""] * len(columns)]), strict=False))
        if separator == ";":
            row |= {name: row[name].replace(",", ".") for name in NUMBERS if name in row}
        found.append(_measured(row, where, times))
    return found


def _columns(header: Sequence[str]) -> list[str]:
    """Without spaces about them; the known ones in lower case."""
    return [name.strip().lower() if name.strip().lower() in KNOWN else name.strip() for name in header]


def _other_unit(columns: Sequence[str]) -> str:
    """What to do where the step is given in another unit."""
    other = next((name for name in columns if name.lower() in ("step_s", "step_us", "step_time", "step")), None)
    return f"; give {other} as step_ms, in milliseconds" if other and "step_ms" not in columns else ""


def _measured(row: Mapping[str, str], where: str, times: bool) -> MeasuredStep:
    ranks = _count(row, "ranks", where)
    step_ms = _milliseconds(row, "step_ms", where) if times or _given(row, "step_ms") else None
    sync_ms = _milliseconds(row, "sync_ms", where, least=0.0) if _given(row, "sync_ms") else None
    if step_ms is not None and sync_ms is not None and sync_ms > step_ms:
        raise DpscopeError(
            f"{where}: sync_ms {row['sync_ms']} is more than step_ms {row['step_ms']}, of which it is a part; give both in "
            "milliseconds"
        )
    return MeasuredStep(
        placement=_placement(row, ranks, where),
        batch_size=_count(row, "batch_per_rank", where) if _given(row, "batch_per_rank") else 0,
        step_us=(step_ms or 0.0) * 1e3,
        sync_us=None if sync_ms is None else sync_ms * 1e3,
        single=row.get("strategy", "").lower() == "single" or (ranks == 1 and not row.get("strategy")),
        identity=(*_other_strategy(row), *((name, value) for name, value in row.items() if name not in KNOWN)),
        placed=any(_given(row, name) for name in ("nodes", "ranks_per_node", "gpus_per_node")),
    )


def _other_strategy(row: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """A strategy such as FSDP is a series of its own."""
    named = row.get("strategy", "").lower()
    return () if named in ("", "single", "ddp") else (("strategy", named),)


def _given(row: Mapping[str, str], name: str) -> bool:
    """Whether a cell holds more than a mark of a missing value."""
    return row.get(name, "").lower() not in _MISSING


def _placement(row: Mapping[str, str], ranks: int, where: str) -> Placement:
    digits = row["gpus_per_node"] if _given(row, "gpus_per_node") else ""
    nodes = _count(row, "nodes", where) if _given(row, "nodes") else None
    if _names_each_node(digits, ranks, nodes, where):
        return Placement(ranks, len(digits), max(map(int, digits)))
    if _given(row, "ranks_per_node"):
        each = min(_count(row, "ranks_per_node", where), ranks)
        return Placement(ranks, nodes or -(-ranks // each), each)
    if nodes is None:
        each = int(digits) if digits.isdigit() and 0 < int(digits) < ranks else ranks
        return Placement(ranks, -(-ranks // each), each)
    if nodes > ranks:
        raise DpscopeError(f"{where}: {nodes} nodes for {ranks} ranks; every node holds one rank or more")
    return Placement(ranks, nodes, -(-ranks // nodes))


def _names_each_node(digits: str, ranks: int, nodes: int | None, where: str) -> bool:
    """Whether ``134`` is 1 + 3 + 4. Of 7 ranks on 1 node, 16 is how many a node could hold, and not 1 + 6."""
    if len(digits) < 2 or not digits.isdigit() or "0" in digits or sum(map(int, digits)) != ranks:
        return False
    if nodes is None or nodes == len(digits):
        return True
    if int(digits) > _MOST_PER_NODE:
        raise DpscopeError(f"{where}: gpus_per_node {digits} names {len(digits)} nodes, nodes says {nodes}")
    return False


def _count(row: Mapping[str, str], name: str, where: str) -> int:
    try:
        value = float(row[name])
    except ValueError:
        raise DpscopeError(f"{where}: {name} is {row[name]!r}; give a whole number") from None
    if not 1 <= value <= _LARGEST_COUNT or value != int(value):
        raise DpscopeError(f"{where}: {name} is {row[name]!r}; give a whole number of 1 or more")
    return int(value)


def _milliseconds(row: Mapping[str, str], name: str, where: str, least: float = 1e-6) -> float:
    try:
        value = float(row[name])
    except ValueError:
        raise DpscopeError(f"{where}: {name} is {row[name]!r}; give milliseconds") from None
    if not least <= value <= _LARGEST_MS:
        raise DpscopeError(f"{where}: {name} is {row[name]!r}; give milliseconds above 0")
    return value
