"""`dpscope analyze TRACE` imports no pandas, pyarrow or scipy, which take longer to import than the trace takes to read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.generated_traces.generator import dp_trace, gloo_trace, write_ddp_job, write_trace
from tests.helpers.paths import DATA

pytestmark = pytest.mark.process

PROGRAM = """
import json, sys
from dpscope.launch.cli import main
try:
    main()
except SystemExit as ended:
    status = ended.code
slow = sorted({name.split('.')[0] for name in sys.modules} & {'pandas', 'pyarrow', 'scipy', 'matplotlib'})
sys.stderr.write(json.dumps([status or 0, slow]) + '\\n')
"""


def imported(*arguments: str) -> list[str]:
    """The slow libraries that the command had imported when it ended."""
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "analyze", *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    status, slow = json.loads(ended.stderr.splitlines()[-1])
    assert status == 0, ended.stderr
    assert len(ended.stdout) > 500
    found: list[str] = slow
    return found


@pytest.mark.parametrize("output_format", ["table", "json", "markdown"])
def test_one_real_trace(output_format: str) -> None:
    assert imported(str(DATA / "a100x2_ddp_resnet50_rank0.json.gz"), "--format", output_format) == []


def test_the_traces_of_several_ranks() -> None:
    assert imported(str(DATA / "v100x8_ddp_dlrm"), "--format", "json") == []


@pytest.mark.parametrize("kind", ["ddp", "dp", "gloo"])
def test_jobs_of_every_kind(kind: str, tmp_path: Path) -> None:
    if kind == "ddp":
        write_ddp_job(tmp_path, 4)
    else:
        for rank, generated in enumerate([dp_trace(2)] if kind == "dp" else [gloo_trace(rank, 2) for rank in range(2)]):
            write_trace(generated.trace, tmp_path / f"0_{rank}.pt.trace.json")
    assert imported(str(tmp_path)) == []


def test_a_table_for_programs_is_a_data_frame() -> None:
    """The library that the others do without is used where a DataFrame is what is requested."""
    assert "pandas" in imported(str(DATA / "a100x2_ddp_resnet50_rank0.json.gz"), "--format", "csv")
