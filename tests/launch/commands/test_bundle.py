"""`dpscope bundle` as typed: what it lists and writes."""

import shutil
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpscope.launch.commands import bundle
from dpscope.launch.contents import app
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA, EXAMPLE_RUN


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # doctor starts a process
    monkeypatch.setattr(bundle, "_machine_notes", lambda: {"doctor": {"checks": []}})
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE_RUN, tmp_path / "mine")
    return tmp_path / "mine"


@pytest.mark.long
def test_it_lists_and_writes(run: Path) -> None:
    listed = CliRunner().invoke(app, ["bundle", "mine", "--list"])
    assert listed.exit_code == 0, listed.output
    assert "traces, reduced to what dpscope reads     12" in listed.output
    assert list(Path().iterdir()) == [Path("mine")]
    written = CliRunner().invoke(app, ["bundle", "mine"])
    assert "Written: mine-bundle.zip" in written.output
    assert "To read it: unzip mine-bundle.zip, then dpscope analyze mine" in written.output
    assert written.output.startswith(listed.output.rstrip())


@pytest.mark.long
def test_a_run_without_results_is_bundled_with_the_reason(run: Path) -> None:
    shutil.rmtree(run / "cells")
    assert CliRunner().invoke(app, ["bundle", "mine"]).exit_code == 0
    with zipfile.ZipFile("mine-bundle.zip") as bundle:
        (notes,) = [name for name in bundle.namelist() if name.endswith("analysis.json")]
        assert "failed" in bundle.read(notes).decode()


def test_traces_are_reduced_and_not_bundled() -> None:
    found = CliRunner().invoke(app, ["bundle", str(DATA / "v100x8_ddp_dlrm")])
    assert isinstance(found.exception, DpscopeError)
    assert "holds traces and no run; dpscope reduce " in str(found.exception)


def test_what_is_no_run_is_refused_with_what_can_be_bundled(tmp_path: Path) -> None:
    for folder in (tmp_path / "nosuch", tmp_path):
        found = CliRunner().invoke(app, ["bundle", str(folder)])
        assert isinstance(found.exception, DpscopeError)
        assert str(found.exception).endswith(
            "; name a folder that `dpscope run` or `dpscope attach` made"
        )
