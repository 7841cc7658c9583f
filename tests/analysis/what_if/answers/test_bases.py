"""What is taken from a run's other cells: where they ran, and how much a collective slows computing."""

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import msgspec
import pandas as pd
import pytest

from dpscope.analysis.runs.run_data import CellData, RunData
from dpscope.analysis.what_if.answers.bases import base_of_run, gamma_of
from dpscope.analysis.what_if.answers.own_error import own_errors
from tests.helpers.paths import EXAMPLE_RUN


def test_a_cell_of_more_devices_on_one_node_is_predicted_on_one_node() -> None:
    asked = base_of_run(EXAMPLE_RUN, None)
    assert asked.cell is not None
    four = replace(asked.cell, cell=msgspec.structs.replace(asked.cell.planned, devices=4))
    (said,) = own_errors(asked, cast(RunData, SimpleNamespace(measured=[four]))).cells
    assert said.reason is None  # not two nodes of two, between which nothing was measured
    assert said.predicted_us is not None


@pytest.mark.parametrize(
    ("alone_us", "expected"),
    # 20 of 50 us of communication are beside computing, which takes 110 us: 8 us more than alone are 0.4 of them.
    [(102.0, 0.4), (90.0, 0.7), (115.0, 0.0)],
)
def test_computing_is_slowed_no_more_than_this_cell_shows(alone_us: float, expected: float) -> None:
    def cell(strategy: str, **times: float) -> CellData:
        windows = pd.DataFrame([{f"{name}_us": value for name, value in times.items()}])
        told = SimpleNamespace(strategy=strategy, variant="", batch_size=8)
        return cast(CellData, SimpleNamespace(cell=told, whole_windows=lambda: windows))

    own = cell("ddp", compute=110.0, communication=50.0, exposed=30.0)
    alone = cell("single", compute=alone_us, communication=0.0, exposed=0.0)
    run = cast(RunData, SimpleNamespace(measured=[alone, own]))
    assert gamma_of(run, own, calibrated=0.7) == pytest.approx(expected)
    assert (
        gamma_of(cast(RunData, SimpleNamespace(measured=[own])), own, calibrated=0.7) == 0.7
    )  # nothing to compare with
