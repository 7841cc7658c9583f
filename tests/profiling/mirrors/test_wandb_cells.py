"""Measured cells in wandb: a run per cell with its numbers as summary and table, of a recorded double."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dpscope.analysis.output.cell_summaries import cell_summaries
from dpscope.analysis.report.build import make_report
from dpscope.profiling.mirrors.wandb_cells import CellMirror
from tests.helpers.examples import loaded


class Recorded:
    """Notes what a wandb run is told."""

    def __init__(self, **told: Any) -> None:
        self.told, self.summary, self.logged, self.finished = told, dict[str, float](), list[dict[str, Any]](), False

    def log(self, values: dict[str, Any]) -> None:
        self.logged.append(values)

    def finish(self) -> None:
        self.finished = True


@pytest.mark.long
def test_every_cell_is_a_run_with_the_numbers_of_its_row(tmp_path: Path) -> None:
    runs: list[Recorded] = []

    def init(**told: Any) -> Recorded:
        runs.append(Recorded(**told))
        return runs[-1]

    double = SimpleNamespace(init=init, Settings=dict, Table=lambda **told: told)
    report = make_report(loaded())
    CellMirror(double, "offline").write(tmp_path, cell_summaries(report))
    assert [one.told["name"] for one in runs] == [data.cell.name for data in report.run.measured]
    assert len({one.told["id"] for one in runs}) == len(runs) > 1
    assert {(one.told["mode"], one.told["dir"], one.finished) for one in runs} == {("offline", str(tmp_path), True)}
    (ddp,) = [one for one in runs if one.told["name"] == "ddp-d2-b8"]
    assert (ddp.told["config"]["strategy"], ddp.told["config"]["devices"]) == ("ddp", 2)
    row = report.comparison.table.set_index("cell").loc["ddp-d2-b8"]
    assert ddp.summary["step_us"] == row["step_us"]
    assert "ring_us" not in ddp.summary  # not known there: left out, not 0
    (logged,) = ddp.logged
    assert ["step_us", row["step_us"]] in logged["summary"]["data"]
