"""docs/python-api.md: its code runs as it stands, and its tables name the columns there are."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpscope.analysis
from dpscope.analysis.traces.ranks import lateness
from dpscope.analysis.traces.ranks import matching as rank_matching
from dpscope.analysis.traces.steps import breakdown as step_breakdown
from dpscope.analysis.traces.steps import collectives
from dpscope.analysis.traces.steps import data_parallel as dp_phases
from tests.helpers.paths import ROOT

DOCUMENT = (ROOT / "docs" / "python-api.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


RUN_ALL = """
import contextlib, io, json, sys
for block in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(block, {"__name__": "__main__"})
    print(json.dumps(shown.getvalue()))
assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """By each block, one after another in one process: imports take most of the time."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps(BLOCKS),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.process
@pytest.mark.parametrize(
    ("index", "expected"),
    [
        # the wait and the compute of a step of ddp-d2-b128
        (0, ["communication takes", "995.145", "29010.320", "study_epochs"]),
        (1, ["samples_per_joule", "322.203", "one device waits for nobody"]),
        # Exposed in step 4 of the A100 trace; busbw of the V100 job's largest.
        (2, ["10163.76", "32.089", "transfer_us"]),
        (3, ["late_rank", "gradient_reduce", "ddp-d2-b128"]),
        (4, [" None\n"]),  # a number, and no reason why there is none
    ],
)
def test_the_code_runs(printed: list[str], index: int, expected: list[str]) -> None:
    assert len(printed) == 5
    assert [one for one in expected if one not in printed[index]] == [], printed[index]


def test_the_tables_name_every_column() -> None:
    named = set(re.findall(r"`([a-z_]+)`", DOCUMENT)) | {"rank", "device", "step", "phase"}
    tables = (
        step_breakdown.COLUMNS,
        collectives.COLUMNS,
        rank_matching.MATCHED_COLUMNS,
        lateness.PAIR_COLUMNS,
    )
    for columns in (*tables, dp_phases.COLUMNS):
        assert set(columns) <= named, "describe the column in docs/python-api.md"


def test_every_public_name_is_there_and_documented() -> None:
    assert [
        getattr(dpscope.analysis, name).__name__ for name in dpscope.analysis.__all__
    ] == dpscope.analysis.__all__
    assert set(dpscope.analysis.__all__) <= set(re.findall(r"\w+", DOCUMENT))
    assert set(re.findall(r"dpscope\.[\w.]+", "".join(BLOCKS))) == {"dpscope.analysis"}
    with pytest.raises(AttributeError, match="no attribute 'read_everything'"):
        dpscope.analysis.read_everything  # noqa: B018


@pytest.mark.process
def test_importing_the_package_loads_nothing() -> None:
    code = "import sys; import dpscope.analysis; print(sorted({'numpy', 'pandas', 'msgspec'} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


@pytest.mark.long
def test_paths_are_strings_or_paths(tmp_path: Path) -> None:
    job = ROOT / "tests" / "data" / "v100x8_ddp_dlrm"
    whole = dpscope.analysis.analyze_traces(job)
    assert list(whole.steps["rank"]) == list(range(8))
    for paths in (str(job), [str(job)], [job]):
        assert dpscope.analysis.analyze_traces(paths).steps.equals(whole.steps)
    two = [str(job / "rank0.json.gz"), str(job / "rank1.json.gz")]
    assert len(dpscope.analysis.merge_traces(two, str(tmp_path / "merged.json")).ranks) == 2
    a100 = str(ROOT / "tests" / "data" / "a100x2_ddp_resnet50_rank0.json.gz")
    assert dpscope.analysis.base_of_traces(a100).base.name == a100
    with pytest.raises(dpscope.analysis.DpscopeError, match="nowhere"):
        dpscope.analysis.load_run(str(tmp_path / "nowhere"))
