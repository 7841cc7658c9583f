"""The audit as it is printed, and the page made from the published tables."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs._tools.published_docs import Notes, read_notes, render_published_results
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.profiling.store.errors import DpscopeError
from examples.published.audit.report import audit_report, render
from examples.published.audit.table import read_claims
from examples.published.audit_claims import main
from tests.helpers.paths import PUBLISHED, ROOT

TIMES = read_epoch_times(PUBLISHED / "epoch_times.csv")
CLAIMED = read_claims(PUBLISHED / "derived_values.csv")


def test_json_holds_estimates_findings_and_claims() -> None:
    content = json.loads(render(audit_report(TIMES, CLAIMED), "json"))
    assert set(content) == {"estimates", "findings", "claims"}
    assert len(content["claims"]) == 104


def test_text_fits_80_columns() -> None:
    text = render(audit_report(TIMES, CLAIMED), "table")
    assert max(map(len, text.splitlines())) <= 80
    assert "104 claims: 100 are what their named method gives" in text


def test_markdown_names_every_study_and_escapes_bars(tmp_path: Path) -> None:
    text = render(audit_report(TIMES, CLAIMED), "markdown")
    for heading in ("## coursework_l4 (second)", "### coursework_weak", "## Findings"):
        assert heading in text
    table, claims = tmp_path / "bare.csv", tmp_path / "claims.csv"
    table.write_text("run,strategy,batch_size,devices,epoch_seconds\na|b,ddp,32,2,6\n")
    claims.write_text("run,quantity,method,printed_value,unit\na|b,speedup,by eye,2,1\n")
    odd = audit_report(read_epoch_times(table), read_claims(claims))
    assert "| a\\|b | speedup |" in render(odd, "markdown")


@pytest.mark.process
def test_the_script_is_run_by_path_from_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, str(PUBLISHED / "audit_claims.py")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ended.stdout == render(audit_report(TIMES, CLAIMED), "table")


def test_a_table_that_cannot_be_read_is_one_line_and_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "absent.csv"), str(PUBLISHED / "derived_values.csv")]) == 2
    assert capsys.readouterr().err == f"{tmp_path}/absent.csv does not exist; name a CSV file\n"


def test_committed_page_is_current() -> None:
    page = render_published_results(TIMES, CLAIMED, read_notes(PUBLISHED / "notes.toml"))
    committed = (ROOT / "docs" / "published-results.md").read_text(encoding="utf-8")
    assert committed == page, "run `make docs`"


@pytest.mark.process
def test_page_is_written_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    command = [sys.executable, str(ROOT / "docs/_tools/published_docs.py")]
    subprocess.run(command, cwd=tmp_path, check=True)
    written = (tmp_path / "docs" / "published-results.md").read_bytes()
    assert written == (ROOT / "docs" / "published-results.md").read_bytes()
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
