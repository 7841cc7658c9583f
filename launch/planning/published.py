"""Values that others published for the same cells: read from a CSV file that `published` names. Imports no torch."""

import csv
import io
from collections.abc import Collection
from pathlib import Path

import msgspec

from dpscope.profiling.records.config import Workload
from dpscope.profiling.records.run import Cell, PublishedValue
from dpscope.profiling.store.errors import DpscopeError, unreadable


def read_published(path: Path, origin: str = "--published") -> tuple[PublishedValue, ...]:
    """The rows of a table whose headings are the fields of PublishedValue; raises DpscopeError naming the row."""
    try:
        content = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DpscopeError(f"{origin} {unreadable(path, error)}; check the path") from error
    except UnicodeDecodeError as error:
        raise DpscopeError(f"{origin} {path}: not UTF-8 text; name a CSV file in UTF-8") from error
    reader = csv.DictReader(io.StringIO(content, newline=""))
    if missing := [name for name in PublishedValue.__struct_fields__ if name not in (reader.fieldnames or ())]:
        raise DpscopeError(f"{origin} {path}: no column {missing[0]}; see examples/published/cell_values.csv")
    values = []
    for row in reader:
        try:
            values.append(msgspec.convert(dict(row), PublishedValue, strict=False))
        except msgspec.ValidationError as error:
            message = str(error).replace("`$.", "column `")
            raise DpscopeError(f"{origin} {path}, row {reader.line_num}: {message}; correct that row") from error
    return tuple(values)


def published_of(
    values: Collection[PublishedValue], workload: Workload, cells: Collection[Cell]
) -> list[PublishedValue]:
    """Those of these cells: the same model, data, strategy, devices and batch; a variant and dp-host have none."""
    wanted = {(one.strategy, one.devices, one.batch_size) for one in cells if not one.variant and one.nodes == 1}
    own = [one for one in values if (one.model, one.data) == (workload.model, workload.data)]
    return [one for one in own if (one.strategy, one.devices, one.batch_size) in wanted]
