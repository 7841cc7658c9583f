"""`dpscope estimate` in its four formats, and the page made from the published tables."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from docs._tools.published_docs import Notes, read_notes, render_published_results
from dpscope.analysis.published.estimates import QUANTITIES, Estimate
from dpscope.analysis.published.report import run_estimate
from dpscope.analysis.published.tables import read_claims, read_epoch_times
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import ROOT

EXAMPLES = ROOT / "examples" / "published"
TIMES, CLAIMS = EXAMPLES / "epoch_times.csv", EXAMPLES / "derived_values.csv"


def test_json_holds_estimates_and_findings() -> None:
    content = json.loads(run_estimate(TIMES, None, "json"))
    assert set(content) == {"estimates", "findings"}
    assert len(content["estimates"]) == 32 * 10
    for estimate in content["estimates"]:
        assert list(estimate) == list(Estimate._fields)
        assert estimate["quantity"] in QUANTITIES
    for finding in content["findings"]:
        assert set(finding) == {"severity", "code", "message", "next_step"}
    sound = [
        estimate["value"]
        for estimate in content["estimates"]
        if estimate["method"] == "same_local_batch"
        and estimate["quantity"] == "communication_seconds"
        and estimate["study"] == "coursework_ddp"
    ]
    assert sound == [pytest.approx(5.45), pytest.approx(8.875)]
    assert "NaN" not in json.dumps(content)


def test_json_holds_claims_when_given() -> None:
    content = json.loads(run_estimate(TIMES, CLAIMS, "json"))
    assert set(content) == {"estimates", "findings", "claims"}
    assert len(content["claims"]) == 104


def test_csv_is_the_estimates() -> None:
    rows = list(csv.DictReader(io.StringIO(run_estimate(TIMES, None, "csv"))))
    found = json.loads(run_estimate(TIMES, None, "json"))["estimates"]
    assert len(rows) == len(found)
    for row, estimate in zip(rows, found, strict=True):
        assert row["method"] == estimate["method"]
        assert row["sound"] == str(estimate["sound"]).lower()
        assert (float(row["value"]) if row["value"] else None) == estimate["value"]


def test_text_fits_80_columns(tmp_path: Path) -> None:
    text = run_estimate(TIMES, CLAIMS, "table")
    assert max(map(len, text.splitlines())) <= 80
    assert "14.12" in text
    assert "104 claims: 100 are what their named method gives" in text
    odd = tmp_path / "odd.csv"
    odd.write_text(
        "study,strategy,batch_size,batch_size_is,devices,epoch_seconds,resolution_s\n"
        f"{'long name ' * 12},hierarchical,9007199254740992,per_device,123456,123456.789,1e9\n"
        f"{'long name ' * 12},single,9007199254740992,per_device,1,1e9,1e9\n"
    )
    assert max(map(len, run_estimate(odd, None, "table").splitlines())) <= 80


def test_single_device_only_says_so(tmp_path: Path) -> None:
    table = tmp_path / "one.csv"
    table.write_text("strategy,batch_size,devices,epoch_seconds\nsingle,32,1,10\n")
    assert "nothing to estimate" in run_estimate(table, None, "table")
    content = json.loads(run_estimate(table, None, "json"))
    assert content["estimates"] == []
    assert "nothing_to_estimate" in {finding["code"] for finding in content["findings"]}
    assert run_estimate(table, None, "markdown").startswith("# Estimates")


def test_unknown_study_is_null_and_bars_are_escaped(tmp_path: Path) -> None:
    table = tmp_path / "bare.csv"
    table.write_text("run,strategy,batch_size,devices,epoch_seconds\na|b,ddp,32,2,6\n")
    assert json.loads(run_estimate(table, None, "json"))["estimates"][0]["study"] is None
    claims = tmp_path / "claims.csv"
    claims.write_text("run,quantity,method,printed_value,unit\na|b,speedup,by eye,2,1\n")
    assert "| a\\|b | speedup |" in run_estimate(table, claims, "markdown")


def test_markdown_names_every_study() -> None:
    text = run_estimate(TIMES, CLAIMS, "markdown")
    for heading in ("## coursework_l4 (second)", "### coursework_weak", "## Findings"):
        assert heading in text


def test_committed_page_is_current() -> None:
    page = render_published_results(read_epoch_times(TIMES), read_claims(CLAIMS), read_notes(EXAMPLES / "notes.toml"))
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
    assert failed.stderr.startswith("cannot read examples")
    assert len(failed.stderr.splitlines()) == 1


def test_every_study_needs_notes(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match="no notes for benchmark_resnet50, coursework_cluster"):
        render_published_results(read_epoch_times(TIMES), read_claims(CLAIMS), Notes(study=()))
    wrong = tmp_path / "notes.toml"
    wrong.write_text('[[study]]\nname = "x"\ntitel = "y"\n')
    with pytest.raises(DpscopeError, match="titel"):
        read_notes(wrong)


@pytest.mark.process
def test_no_torch_is_imported() -> None:
    check = "import sys, dpscope.analysis.published.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
