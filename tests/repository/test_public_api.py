"""docs/python-api.md: its code runs as it stands, and its tables name the columns there are."""

import re
import subprocess
import sys

import pytest

from dpscope.analysis.traces.data_parallel import phases as dp_phases
from dpscope.analysis.traces.ranks import matching as rank_matching
from dpscope.analysis.traces.ranks import stragglers
from dpscope.analysis.traces.steps import breakdown as step_breakdown
from dpscope.analysis.traces.steps import collectives
from tests.helpers.paths import ROOT

DOCUMENT = (ROOT / "docs" / "python-api.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


@pytest.mark.process
@pytest.mark.parametrize("index", range(3))
def test_the_code_runs(index: int) -> None:
    script = BLOCKS[index] + "\nimport sys\nassert 'torch' not in sys.modules\n"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout
    if index == 0:
        assert "10163.76" in shown  # exposed in step 4 of the A100 trace
        assert "32.089" in shown  # busbw of the V100 job's largest all-reduce
    elif index == 1:
        assert shown.splitlines()[-1] == "8 of 8"
    else:
        assert "late_rank" in shown
        assert "gradient_reduce" in shown
        assert "ddp-d2-b8" in shown.splitlines()[-1]


def test_all_code_is_run() -> None:
    assert len(BLOCKS) == 3


def test_the_tables_name_every_column() -> None:
    named = set(re.findall(r"`([a-z_]+)`", DOCUMENT)) | {"rank", "device", "step", "phase"}
    for columns in (
        step_breakdown.COLUMNS,
        collectives.COLUMNS,
        rank_matching.MATCHED_COLUMNS,
        stragglers.COLUMNS,
        dp_phases.COLUMNS,
    ):
        assert set(columns) <= named
