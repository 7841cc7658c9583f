"""A whole run as JSON (the comparison, the gaps, steps, collectives and findings), and its cells
for a mirror.
"""

import json
from dataclasses import asdict

import msgspec

from dpscope.analysis.cells.columns import columns
from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.output.trace_tables import LISTS, contention_records, decimals, records
from dpscope.analysis.report.build import Report
from dpscope.analysis.text.units import whole_numbers
from dpscope.analysis.training.tables import training_content
from dpscope.profiling.mirrors.wandb_mirror import CellSummary


def run_json(report: Report) -> str:
    """`verdict`, and the lists cells, gaps, predictions, scaling, steps, collectives, dp_phases,
    waits, contention, memory, nccl.

    And `findings`, and `training`, which is `training_content`, null where nothing was trained in
    the folder. Unknown is null. `cells` has the comparison's columns and `missing` (column -> why);
    the rows of traces also name cell and repeat. `dp_phases` and `waits` hold no cell whose
    communication the trace does not show; waits are of whole steps.
    """
    return json.dumps(
        {
            "verdict": report.verdict.record(),
            "cells": cell_records(report.comparison),
            "gaps": [gap.record() for gap in report.comparison.gaps],
            "predictions": prediction_records(report.comparison),
            "scaling": scaling_records(report.comparison),
            **{name: _rows(report, name) for name in LISTS},
            "contention": [
                {"cell": name, **record}
                for name, row in report.comparison.rows.items()
                if row.contentions is not None and row.ledger is not None
                for record in contention_records(
                    row.contentions, row.ledger.hidden_us, report.run.cells[name].on_device
                )
            ],
            # peaks per (cell, repeat, rank, device), bytes; none on the CPU, whose allocator keeps
            # none
            "memory": [
                {
                    "cell": data.name,
                    "repeat": repeat,
                    "rank": rank.rank,
                    **msgspec.to_builtins(memory),
                }
                for data in report.run.measured
                for repeat, rank in data.ranks
                for memory in rank.memory
            ],
            "nccl": report.nccl.content(),
            "training": training_content(report.run.training) if report.run.training else None,
            "findings": msgspec.to_builtins(report.findings),
        },
        indent=2,
    )


def cell_records(comparison: Comparison) -> list[dict[str, object]]:
    """Each cell's columns and `missing`: by column, why its value is missing."""
    named = {column.name: whole_numbers(comparison.values(column.name)) for column in columns()}
    return [
        {
            **{name: decimals(values[index]) for name, values in named.items()},
            "missing": row.reasons,
        }
        for index, row in enumerate(comparison.rows.values())
    ]


def _rows(report: Report, name: str) -> list[dict[str, object]]:
    """A list of LISTS: the rows of each measured cell, with its name and their repeat."""
    fields, table_of_job = LISTS[name]
    return [
        {"cell": data.name, **record}
        for data in report.run.measured
        for record in records(table_of_job(data), ("repeat", *fields))
    ]


def prediction_records(comparison: Comparison) -> list[dict[str, object]]:
    """A row for each kind and size of collective of each cell: measured, predicted, relative
    error.
    """
    return [
        asdict(prediction)
        | {"expected_us": prediction.expected_us, "relative_error": prediction.relative_error}
        for prediction in comparison.predictions
    ]


def scaling_records(comparison: Comparison) -> list[dict[str, object]]:
    """A row for each series: its points with intervals, and its law."""
    rows = []
    for series in comparison.scaling:
        points = [
            asdict(point) | {"efficiency": asdict(point.efficiency)} for point in series.points
        ]
        law: dict[str, object] | None = None
        if (fit := series.fit) is not None:
            parameters = {name: asdict(value) for name, value in fit.parameters.items()}
            law = {"name": fit.law, "parameters": parameters}
            law |= {"worst_relative_error": fit.worst_relative_error, "note": fit.note}
        names = ("strategy", "variant", "scaling", "batch_size")
        rows.append(
            {name: getattr(series, name) for name in names} | {"points": points, "law": law}
        )
    return rows


def cell_summaries(report: Report) -> list[CellSummary]:
    """One for each measured cell; numbers that are missing are left out, as mirrors know no NA."""
    workload = report.run.manifest.config.workload
    return [
        CellSummary(
            name=data.name,
            settings={
                **{
                    name: getattr(data.cell, name) for name in ("strategy", "devices", "batch_size")
                },
                "variant": data.variant or "none",
                "model": workload.model,
                "data": workload.data,
            },
            values={
                column.name: float(number)
                for column in columns()
                if (number := report.comparison.rows[data.name].number(column.name)) is not None
            },
        )
        for data in report.run.measured
    ]
