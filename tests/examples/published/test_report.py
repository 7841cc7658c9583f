"""The page made from the published tables."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from docs._tools.published_docs import Notes, read_notes, render_published_results
from dpscope.analysis.epoch_times.claims import read_claims
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import PUBLISHED, ROOT

TIMES = read_epoch_times(PUBLISHED / "epoch_times.csv")
CLAIMED = read_claims(PUBLISHED / "derived_values.csv")


def test_committed_page_is_current() -> None:
    page = render_published_results(TIMES, CLAIMED, read_notes(PUBLISHED / "notes.toml"))
    assert (PUBLISHED / "results.md").read_text(encoding="utf-8") == page, "run `make docs`"


@pytest.mark.process
def test_page_is_written_where_it_belongs(tmp_path: Path) -> None:
    tables = shutil.copytree(PUBLISHED, tmp_path / "examples/published", ignore=shutil.ignore_patterns("results.md"))
    command = [sys.executable, str(ROOT / "docs/_tools/published_docs.py")]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tables / "results.md").read_bytes() == (PUBLISHED / "results.md").read_bytes()
    elsewhere = tmp_path / "empty"
    elsewhere.mkdir()
    failed = subprocess.run(command, cwd=elsewhere, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith("examples/published/epoch_times.csv does not exist")
    assert len(failed.stderr.splitlines()) == 1


def test_every_study_needs_notes(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match="no notes for benchmark_resnet50, coursework_cluster"):
        render_published_results(TIMES, CLAIMED, Notes(study=()))
    wrong = tmp_path / "notes.toml"
    wrong.write_text('[[study]]\nname = "x"\ntitel = "y"\n')
    with pytest.raises(DpscopeError, match="titel"):
        read_notes(wrong)
