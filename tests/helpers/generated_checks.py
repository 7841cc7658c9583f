"""Generated traces analyzed, and what is found held against what their generator states."""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.generator import ExpectedStep, GeneratedTrace, write_trace

TIMES = (
    "step_us", "compute_us", "communication_us", "hidden_us", "exposed_us", "host_copy_us", "device_copy_us", "idle_us",
    "clipped_us",
)  # fmt: skip
RECORDED = (
    "group",
    "sequence",
    "bytes",
    "group_size",
    "transfer_us",
    "wait_us",
    "algbw_gb_per_s",
    "busbw_gb_per_s",
)


def analyzed(tmp_path: Path, *ranks: GeneratedTrace) -> Job:
    for rank, generated in enumerate(ranks):
        write_trace(generated.trace, tmp_path / f"0_{rank}.pt.trace.json.gz")
    return analyze_traces([tmp_path])


def check_job(analysis: Job, ranks: list[GeneratedTrace]) -> None:
    """Every expected step and collective of each rank."""
    for rank, generated in enumerate(ranks):
        check_steps(analysis.steps, rank, generated)
    check_collectives(analysis, ranks)


def check_steps(steps: pd.DataFrame, rank: int, generated: GeneratedTrace) -> None:
    own = steps[(steps["rank"] == rank) | steps["rank"].isna()]
    assert len(own) == len(generated.expected.steps) > 0
    for record in own.to_dict("records"):
        device = None if pd.isna(record["device"]) else int(record["device"])
        check_step(record, generated.expected.steps[device, int(record["step"])])


def check_step(record: Mapping[Hashable, Any], expected: ExpectedStep) -> None:
    for name in TIMES:
        value = getattr(expected, name)
        if value is None:
            assert pd.isna(record[name]), (name, record)
            continue
        assert record[name] == pytest.approx(value, abs=1e-3), (name, record)
    assert record["partial_window"] is expected.partial_window
    assert record["collective_count"] == expected.collective_count
    for name, value in expected.range_us.items():
        assert record[f"{name}_us"] == pytest.approx(value, abs=1e-3), (name, record)


def check_collectives(analysis: Job, ranks: list[GeneratedTrace]) -> None:
    """Every expected collective is there, with every number it states."""
    table = analysis.collectives
    in_steps = table[table["step"].notna()]
    assert len(in_steps) == sum(len(generated.expected.collectives) for generated in ranks)
    for rank, generated in enumerate(ranks):
        own = in_steps[(in_steps["rank"] == rank) | in_steps["rank"].isna()]
        expected = sorted(
            generated.expected.collectives, key=lambda one: (one.start_us, one.device or 0)
        )
        found = own.sort_values(["start_us", "device"]).to_dict("records")
        assert len(found) == len(expected) > 0
        for record, one in zip(found, expected, strict=True):
            assert (record["kind"], record["step"]) == (one.kind, one.step)
            assert record["duration_us"] == pytest.approx(one.duration_us, abs=1e-3)
            for name in RECORDED:
                value = getattr(one, name)
                if value is None:
                    assert pd.isna(record[name]), (name, record, one)
                elif isinstance(value, float):
                    assert record[name] == pytest.approx(value, rel=1e-3), (name, record, one)
                else:
                    assert record[name] == value, (name, record, one)


def parallelism(analysis: Job) -> str:
    (finding,) = [one for one in analysis.findings if one.code == "parallelism"]
    assert finding.severity == "info"
    return finding.message
