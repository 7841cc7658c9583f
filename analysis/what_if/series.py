"""The rows of a table as series: rows that measure one thing, told apart by the columns that are settings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from dpscope.analysis.what_if.step_table import MeasuredStep

Identity = tuple[tuple[str, str], ...]


def series_of(rows: Sequence[MeasuredStep]) -> dict[Identity, list[MeasuredStep]]:
    """Rows by series, in their order. A series without one device's step takes those that leave its settings open."""
    found: dict[Identity, list[MeasuredStep]] = {}
    for row in rows:
        found.setdefault(row.identity, []).append(row)
    alone = [row for row in rows if row.placement.ranks == 1]
    return {
        identity: mine
        if any(row.placement.ranks == 1 for row in mine)
        else [*(row for row in alone if _leaves_open(row.identity, identity)), *mine]
        for identity, mine in found.items()
        if not _only_open(identity, mine, found)
    }


def _leaves_open(general: Identity, identity: Identity) -> bool:
    """Whether every setting of `general` is that of `identity`, or empty."""
    own = dict(identity)
    return all(not value or own.get(name) == value for name, value in general)


def _only_open(identity: Identity, mine: Sequence[MeasuredStep], found: Collection[Identity]) -> bool:
    """Whether these are only one device's steps which another series takes."""
    others = [other for other in found if other != identity and _leaves_open(identity, other)]
    return bool(others) and all(row.placement.ranks == 1 for row in mine)


def comparable(
    rows: Sequence[MeasuredStep], others: Sequence[MeasuredStep]
) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
    """Two tables without columns that are no settings, and without those of one alone that are the same in all of its rows."""
    mine, theirs = _values(rows), _values(others)
    dropped = measures(rows)
    dropped |= {name for name, found in mine.items() if name not in theirs and len(set(found)) == 1}
    dropped |= {
        name
        for name, found in theirs.items()
        if name not in mine and (len(set(found)) == 1 or (_numbers(found) and 2 * len(set(found)) > len(found)))
    }
    kept, asked = without(rows, dropped), without(others, dropped)
    batches = {row.batch_size for row in rows}
    if len(batches) == 1:  # a table of one batch speaks of that one
        asked = [row if row.batch_size else replace(row, batch_size=min(batches)) for row in asked]
    return kept, asked


def measures(rows: Sequence[MeasuredStep]) -> set[str]:
    """Columns that are no settings: none of their values is of two device counts, so they tell rows apart and not series."""
    found = set()
    for name, values in _values(rows).items():
        counts: dict[str, set[int]] = {}
        for row, value in zip(rows, values, strict=True):
            counts.setdefault(value, set()).add(row.placement.ranks)
        if len(counts) > 1 and all(len(of) == 1 for of in counts.values()):
            found.add(name)
    return found


def without(rows: Sequence[MeasuredStep], columns: Collection[str]) -> list[MeasuredStep]:
    """The rows as if some columns were not there."""
    return [replace(row, identity=tuple(one for one in row.identity if one[0] not in columns)) for row in rows]


def _values(rows: Sequence[MeasuredStep]) -> Mapping[str, list[str]]:
    names = dict.fromkeys(name for row in rows for name, _ in row.identity)
    return {name: [dict(row.identity).get(name, "") for row in rows] for name in names}


def _numbers(values: Sequence[str]) -> bool:
    try:
        [float(value) for value in values if value]
    except ValueError:
        return False
    return True
