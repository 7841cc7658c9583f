"""The studies in examples/studies: each plans its cells with the small settings that its own
comment gives.
"""

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs._tools.cell_values import as_csv, cell_values, read_claims
from dpscope.analysis import read_epoch_times
from dpscope.launch.contents import app
from dpscope.launch.jobs.devices import Devices
from dpscope.launch.planning.cells import make_plan, resolve
from dpscope.launch.planning.run_config import load_config
from tests.helpers.paths import PUBLISHED, ROOT

STUDIES = sorted(
    path for path in (ROOT / "examples" / "studies").glob("*.toml") if path.stem != "d_train"
)


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_on_gpus_each_plans_one_two_and_four_devices(study: Path) -> None:
    """As a machine with four GPUs would plan it, without small settings."""
    config = resolve(load_config(study, {}), Devices(kind="cuda", count=4))
    cells = {
        one.cell
        for one in make_plan(config.matrix, config.workload.samples, "cuda")
        if one.skip_reason is None
    }
    assert {(cell.strategy, cell.devices) for cell in cells} == {
        ("single", 1), ("dp", 2), ("dp", 4), ("ddp", 1), ("ddp", 2), ("ddp", 4),
    }  # fmt: skip
    assert config.workload.data == "cifar10"


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_the_small_settings_of_each_are_planned(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    lines = study.read_text().splitlines()
    commands = [line.removeprefix("# ") for line in lines if line.startswith("# dpscope ")]
    given = shlex.split(commands[-1])[1:]  # the small one
    given[given.index("--out") + 1] = str(tmp_path / "run")
    ended = CliRunner().invoke(app, [*given, "--dry-run"], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    assert "ddp-d2-b8" in ended.output
    assert "dp-host-d2-b8" in ended.output
    assert not (tmp_path / "run").exists()


def test_the_published_values_by_cell_are_those_of_the_published_tables() -> None:
    times, claims = (
        read_epoch_times(PUBLISHED / "epoch_times.csv"),
        read_claims(PUBLISHED / "derived_values.csv"),
    )
    made = as_csv(cell_values(times.rows, claims))
    assert (
        made.count("epoch_seconds")
        == sum(row.epoch_seconds is not None for row in times.rows)
        == 65
    )
    assert made == (PUBLISHED / "cell_values.csv").read_text()
