"""Stored numbers that cannot have been measured are refused where a file is read, with its name."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import RepeatFolder
from tests.helpers.paths import EXAMPLE_RUN


@pytest.fixture
def repeat(tmp_path: Path) -> RepeatFolder:
    path = tmp_path / "run" / "cells" / "ddp-d2-b8" / "repeat0"
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run")
    return RepeatFolder(path)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("samples", -1),
        ("samples", 2**62),
        ("step", -(2**63)),
        ("step_us", np.inf),
        ("step_us", -1.0),
        ("step_us", 1e300),
        ("data_wait_us", -np.inf),
        ("epoch", -1),
        ("step_us", "12"),
        ("samples", 1.5),
    ],
)
def test_samples_outside_their_range_are_refused(
    repeat: RepeatFolder, column: str, value: object
) -> None:
    path = repeat.samples_path(0, 1)
    samples = pd.read_parquet(path)
    samples[column] = pd.Series([value] * len(samples))
    samples.to_parquet(path, index=False)
    with pytest.raises(DpscopeError, match=rf"samples_0_1\.parquet: .*{column}"):
        repeat.samples(repeat.ranks())


def test_a_column_that_is_not_there_is_named(repeat: RepeatFolder) -> None:
    path = repeat.samples_path(0, 1)
    pd.read_parquet(path).drop(columns="samples").to_parquet(path, index=False)
    with pytest.raises(DpscopeError, match=r"samples_0_1\.parquet: it has no column samples"):
        repeat.samples(repeat.ranks())


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ((), "world_size", 0),
        ((), "rank", -1),
        (("model",), "gradient_bytes", -4),
        (("model",), "parameter_count", 2**63 - 1),
        (("blocks", 0), "duration_s", -1.0),
        (("blocks", 0), "samples", -1),
    ],
)
def test_results_outside_their_range_are_refused(
    repeat: RepeatFolder, part: tuple[str | int, ...], field: str, value: object
) -> None:
    path = repeat.rank_path(0, 1)
    result = json.loads(path.read_text())
    inner = result
    for key in part:
        inner = inner[key]
    inner[field] = value
    path.write_text(json.dumps(result))
    with pytest.raises(DpscopeError, match=rf"rank_0_1\.json is not a RankResult .*{field}"):
        repeat.ranks()


@pytest.mark.long
def test_a_repeat_with_such_a_number_is_left_out_with_the_reason(repeat: RepeatFolder) -> None:
    path = repeat.samples_path(0, 1)
    pd.read_parquet(path).assign(samples=-1).to_parquet(path, index=False)
    data = load_run(repeat.run.path).cells["ddp-d2-b8"]
    (message,) = (one.message for one in data.findings if one.code == "repeats_missing")
    assert "samples is -1 in" in message
    assert {number for number, _ in data.ranks} == {1}
