"""Measured step times as a table: one row a configuration, as people publish them or write them down.

Columns: `ranks` and `step_ms`; `batch_per_rank` (samples per device and step); `nodes`, or `ranks_per_node`, or `gpus_per_node`
(the devices of each node as digits: ``134`` is 1 + 3 + 4, also a single number of all); `sync_ms`, the exposed communication,
where it was measured; `strategy`, of which ``single`` is a run without DistributedDataParallel. Every other column tells
measurements of different things apart (a model, a network): rows are only compared where all of them are equal.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from dpscope.profiling.store.errors import DpscopeError, unreadable

NUMBERS = ("ranks", "step_ms", "batch_per_rank", "nodes", "ranks_per_node", "sync_ms")
_NEEDED = ("ranks", "step_ms")
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
    """One row: `identity` is what else tells it apart, by column; microseconds, `sync_us` None where unknown."""

    placement: Placement
    batch_size: int  # per rank and step; 0 where the table has none
    step_us: float
    sync_us: float | None
    single: bool  # one device without DistributedDataParallel
    identity: tuple[tuple[str, str], ...] = ()
    placed: bool = True  # False where the table does not say which devices share a node: all are taken to be on one


def read_step_table(path: Path, times: bool = True) -> list[MeasuredStep]:
    """The rows of a CSV file in their order; without `times` the times may be missing (they are 0 then).

    Raises DpscopeError naming file, row and column of what cannot be read.
    """
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, comment="#")
    except OSError as error:
        raise DpscopeError(unreadable(path, error)) from error
    except (ValueError, pd.errors.ParserError) as error:
        raise DpscopeError(f"{path} is no CSV table: {str(error).splitlines()[0]}") from error
    needed = _NEEDED if times else _NEEDED[:1]
    lacking = [name for name in needed if name not in table.columns]
    if lacking:
        raise DpscopeError(
            f"{path} has no column {' and no '.join(lacking)}; its columns are {', '.join(map(str, table.columns))}"
        )
    if table.empty:
        raise DpscopeError(f"{path} has no rows: give at least one measured step time")
    rows = [{str(name): str(value).strip() for name, value in row.items()} for row in table.to_dict("records")]
    return [_measured(row, f"{path}, line {number}", times) for number, row in enumerate(rows, start=2)]


def _measured(row: Mapping[str, str], where: str, times: bool) -> MeasuredStep:
    ranks = _count(row, "ranks", where)
    step_ms = _milliseconds(row, "step_ms", where) if times or row.get("step_ms") else None
    sync_ms = _milliseconds(row, "sync_ms", where, least=0.0) if row.get("sync_ms") else None
    if step_ms is not None and sync_ms is not None and sync_ms > step_ms:
        raise DpscopeError(
            f"{where}: sync_ms {row['sync_ms']} is more than step_ms {row['step_ms']}, of which it is a part; give both in "
            "milliseconds"
        )
    told = {*NUMBERS, "gpus_per_node", "strategy", "busbw_gb_per_s"}
    return MeasuredStep(
        placement=_placement(row, ranks, where),
        batch_size=_count(row, "batch_per_rank", where) if row.get("batch_per_rank") else 0,
        step_us=(step_ms or 0.0) * 1e3,
        sync_us=None if sync_ms is None else sync_ms * 1e3,
        single=row.get("strategy", "").lower() == "single" or (ranks == 1 and not row.get("strategy")),
        identity=tuple((name, value) for name, value in row.items() if name not in told),
        placed=any(row.get(name) for name in ("nodes", "ranks_per_node", "gpus_per_node")),
    )


def _placement(row: Mapping[str, str], ranks: int, where: str) -> Placement:
    digits = row.get("gpus_per_node", "")
    nodes = _count(row, "nodes", where) if row.get("nodes") else None
    if _names_each_node(digits, ranks, nodes, where):
        return Placement(ranks, len(digits), max(map(int, digits)))
    if row.get("ranks_per_node"):
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
