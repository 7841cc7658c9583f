"""The traces of several jobs: each analysed by itself, told apart by a column, what they have in common said once."""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.analysis.output.traced_jobs import job_csv, job_findings, job_tables, the_one_job
from dpscope.analysis.output.traced_report import TraceRequest, export_traces, print_traces, traces_json
from dpscope.analysis.traces.ranks.trace_analysis import analyze_jobs, analyze_traces
from dpscope.analysis.traces.reading.limits import DEFAULT_LIMITS
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA
from tests.helpers.several_jobs import write_job


@pytest.fixture
def two_jobs(tmp_path: Path) -> Path:
    for number, job in enumerate(("first", "second")):
        write_job(tmp_path / job, "rank", later_s=60.0 * number, process=1000 * number)
    return tmp_path


def test_each_job_is_what_it_is_alone(two_jobs: Path) -> None:
    """Collectives are matched within each job, where all files as one would match none."""
    alone = analyze_traces(two_jobs / "first")
    assert alone.collectives["transfer_us"].notna().any()
    jobs = analyze_jobs(two_jobs)
    assert list(jobs) == ["first", "second"]
    for analysis in jobs.values():
        assert analysis.collectives["transfer_us"].tolist() == alone.collectives["transfer_us"].tolist()
        assert analysis.steps["step_us"].tolist() == alone.steps["step_us"].tolist()
        assert "ranks_not_unique" not in {finding.code for finding in analysis.findings}


@pytest.mark.long
def test_tables_data_and_findings_name_the_job(two_jobs: Path) -> None:
    jobs = analyze_jobs(two_jobs)
    (steps,) = [table for table in job_tables(jobs) if table.title == "Steps"]
    assert steps.headings[:2] == ("job", "rank")
    count = len(analyze_traces(two_jobs / "first").steps)
    assert [row[0] for row in steps.rows] == ["first"] * count + ["second"] * count
    rows = list(csv.DictReader(io.StringIO(job_csv(jobs))))
    assert [row["job"] for row in rows] == [row[0] for row in steps.rows]
    content = json.loads(traces_json(jobs, None))
    assert content["jobs"] == ["first", "second"]
    assert {record["job"] for name in ("steps", "collectives", "findings") for record in content[name]} == {
        "first",
        "second",
    }
    said = [finding.message for finding in job_findings(jobs) if finding.code == "parallelism"]
    assert len(said) == 1, "what two jobs have in common is said once"
    assert said[0].startswith("jobs first, second: ")


@pytest.mark.long
def test_tables_of_other_columns_stand_apart(tmp_path: Path) -> None:
    """One A100 job of a single rank has no waiting; eight V100 ranks have."""
    shutil.copytree(DATA / "v100x8_ddp_dlrm", tmp_path / "v100")
    shutil.copy(DATA / "a100x2_ddp_resnet50_rank0.json.gz", tmp_path)
    jobs = analyze_jobs(tmp_path)
    assert list(jobs) == [".", "v100"]
    titles = [table.title for table in job_tables(jobs)]
    assert titles[:2] == ["Steps (.)", "Steps (v100)"]


def test_one_job_is_printed_as_ever(two_jobs: Path) -> None:
    jobs = analyze_jobs(two_jobs / "first")
    assert list(jobs) == [""]
    assert "job" not in job_tables(jobs)[0].headings
    assert "job" not in json.loads(traces_json(jobs, None))["steps"][0]
    assert job_csv(jobs).startswith("rank,device,step,")


@pytest.mark.long
def test_what_is_of_one_job_is_refused_for_several(two_jobs: Path) -> None:
    with pytest.raises(
        DpscopeError, match=r"holds the traces of 2 jobs \(first, second\): a TensorBoard folder takes one"
    ):
        export_traces([two_jobs], TraceRequest(), two_jobs / "shown")
    request = TraceRequest(report=two_jobs / "report")
    with pytest.raises(DpscopeError, match="a report or a prediction takes one job; name that job's folder or files"):
        print_traces([two_jobs], "table", DEFAULT_LIMITS, Console(file=io.StringIO()), request)
    assert not (two_jobs / "report").exists()
    assert the_one_job(analyze_jobs(two_jobs / "first"), [two_jobs], "a report").steps is not None
