"""Values of the analysis kept as JSON, so that a change of the code shows which of them it changes.

`python -m tests.analysis.goldens` writes them again; tests/README.md says when that is allowed. A
table is its columns, by name. Of a sentence, such as a message or the reason for a missing value,
only its presence is kept; a finding is its severity and code.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from dpscope.analysis.costs.calibration_files import costs_at
from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.output.traces_screen import ReadJob, traces_json
from dpscope.analysis.report.build import make_report
from dpscope.analysis.runs.run_data import load_run
from dpscope.analysis.traces.ranks.trace_analysis import analyze_jobs
from dpscope.analysis.training.data import load_training
from dpscope.analysis.training.tables import training_json
from tests.generated_traces.generator import (
    DdpOptions,
    ddp_trace,
    dp_trace,
    gloo_trace,
    parallel_trace,
    write_trace,
)
from tests.generated_traces.model import GeneratedTrace
from tests.helpers.paths import DATA, ROOT

FOLDER = DATA / "goldens"
COMMAND = ".venv/bin/python -m tests.analysis.goldens"
SENTENCE = "(text)"
NO_VALUE = "(no value: a reason is given)"
DIGITS = 9
RELATIVE, ABSOLUTE = 1e-7, 1e-9
MOST_ROWS = 40  # of a longer table every n-th row is kept

Value = str | float | bool | None
GoldenTable = dict[str, list[Value]]
Golden = dict[str, GoldenTable]
Record = Mapping[str, Any]


def run_values(folder: Path) -> Golden:
    return tables_of(json.loads(run_json(make_report(load_run(folder)))))


def training_values(folder: Path) -> Golden:
    content = json.loads(training_json(load_training(folder)))
    return tables_of({**content["training"], "findings": content["findings"]})


def trace_values(paths: Iterable[Path]) -> Golden:
    jobs = {name: ReadJob(analysis) for name, analysis in analyze_jobs(list(paths)).items()}
    return tables_of(json.loads(traces_json(jobs, None)))


def generated_values(*ranks: GeneratedTrace) -> Golden:
    with tempfile.TemporaryDirectory() as folder:
        for rank, generated in enumerate(ranks):
            write_trace(generated.trace, Path(folder) / f"0_{rank}.pt.trace.json.gz")
        return trace_values([Path(folder)])


def calibration_values(path: Path) -> Golden:
    content = json.loads(msgspec.json.encode(costs_at(path)))
    return tables_of({name: content[name] for name in ("fits", "contention", "findings")})


SOURCES: dict[str, Callable[[], Golden]] = {
    "run_cpu": lambda: run_values(ROOT / "examples" / "run_cpu"),
    "run_tiny": lambda: run_values(DATA / "run_tiny"),
    "attached_tiny": lambda: run_values(DATA / "attached_tiny"),
    "trained_tiny": lambda: training_values(DATA / "trained_tiny"),
    "v100x8": lambda: trace_values(sorted((DATA / "v100x8_ddp_dlrm").glob("*.json.gz"))),
    "a100_rank0": lambda: trace_values([DATA / "a100x2_ddp_resnet50_rank0.json.gz"]),
    "compiled_ddp": lambda: trace_values([DATA / "compiled_ddp"]),
    "calibration": lambda: calibration_values(ROOT / "examples" / "run_cpu" / "calibration.json"),
    "generated_ddp": lambda: generated_values(*(ddp_trace(rank, 2) for rank in range(2))),
    "generated_late": lambda: generated_values(
        *(ddp_trace(rank, 2, DdpOptions(straggler=0)) for rank in range(2))
    ),
    "generated_gloo": lambda: generated_values(*(gloo_trace(rank, 2) for rank in range(2))),
    "generated_dp": lambda: generated_values(
        dp_trace(devices=4, transport="peer_copy", named_ranges=False)
    ),
    "generated_sharded": lambda: generated_values(
        *(parallel_trace("fully_sharded", rank) for rank in range(4))
    ),
    "generated_dlrm": lambda: generated_values(
        *(parallel_trace("dlrm", rank) for rank in range(4))
    ),
}


def tables_of(content: Record) -> Golden:
    """Every list of records as a table, and every record as a table of one row."""
    tables: Golden = {}
    for name, value in content.items():
        records = [value] if isinstance(value, dict) else value
        if (
            isinstance(records, list)
            and records
            and all(isinstance(record, dict) for record in records)
        ):
            tables[name] = table_of(
                [flat(record) for record in records], in_order=name != "findings"
            )
        else:
            tables[name] = {"value": [simple(value)]}
    return tables


def table_of(rows: list[dict[str, Value]], in_order: bool) -> GoldenTable:
    if not in_order:
        rows = sorted(rows, key=lambda row: (str(row.get("code")), str(row.get("severity"))))
    every = math.ceil(len(rows) / MOST_ROWS)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows[::every]] for name in names}
    return {
        "rows": [len(rows)],
        **{name: values for name, values in columns.items() if set(values) != {None}},
    }


def flat(record: Record) -> dict[str, Value]:
    """A record with nested ones in it, by names such as ``law.latency_us``; a reason in `missing`
    marks its column.
    """
    row: dict[str, Value] = {}
    for name, value in record.items():
        if name == "missing" and isinstance(value, dict):
            row.update(dict.fromkeys(value, NO_VALUE))
        elif isinstance(value, dict):
            row.update({f"{name}.{part}": inner for part, inner in flat(value).items()})
        elif isinstance(value, list):
            row.update(flat({f"{name}.{place}": inner for place, inner in enumerate(value)}))
        else:
            row[name] = simple(value)
    return row


def simple(value: object) -> Value:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int | float):
        return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
    return SENTENCE if " " in str(value) or "/" in str(value) else str(value)


def differences(source: str, expected: Golden, found: Golden) -> list[str]:
    """One line per value that differs: table, column, row, expected and found."""
    lines = []
    for table in sorted(expected.keys() | found.keys()):
        old, new = expected.get(table, {}), found.get(table, {})
        for column in sorted(old.keys() | new.keys()):
            before, after = old.get(column, []), new.get(column, [])
            for row in range(max(len(before), len(after))):
                one = before[row] if row < len(before) else None
                other = after[row] if row < len(after) else None
                if not same(one, other):
                    lines.append(
                        f"{source}: {table}, column {column}, row {row}: expected {one!r}, found {other!r}"
                    )
    return lines


def same(one: Value, other: Value) -> bool:
    numbers = [
        value
        for value in (one, other)
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    if len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return one == other


def stored(source: str) -> Golden:
    golden: Golden = json.loads((FOLDER / f"{source}.json").read_text())
    return golden


def write(source: str, golden: Golden) -> None:
    """A column per line, so that a diff names those that changed."""
    FOLDER.mkdir(exist_ok=True)
    tables = []
    for table, columns in golden.items():
        lines = [
            f"  {json.dumps(name)}: {json.dumps(values, separators=(',', ':'))}"
            for name, values in columns.items()
        ]
        tables.append(f" {json.dumps(table)}: {{\n" + ",\n".join(lines) + "\n }")
    (FOLDER / f"{source}.json").write_text("{\n" + ",\n".join(tables) + "\n}\n")


if __name__ == "__main__":
    for name in sys.argv[1:] or SOURCES:
        write(name, SOURCES[name]())
