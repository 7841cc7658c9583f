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


@pytest.mark.parametrize(
    ("kind", "output_format"),
    [("a100", "table"), ("a100", "json"), ("a100", "markdown"), ("a100", "csv"), ("v100", "json"), ("ddp", "table"),
     ("dp", "table"), ("gloo", "table")],
)  # fmt: skip
def test_only_a_table_for_programs_is_a_data_frame(kind: str, output_format: str, tmp_path: Path) -> None:
    places = {"a100": DATA / "a100x2_ddp_resnet50_rank0.json.gz", "v100": DATA / "v100x8_ddp_dlrm"}
    if kind == "ddp":
        write_ddp_job(tmp_path, 4)
    elif kind not in places:
        for rank, generated in enumerate([dp_trace(2)] if kind == "dp" else [gloo_trace(rank, 2) for rank in range(2)]):
            write_trace(generated.trace, tmp_path / f"0_{rank}.pt.trace.json")
    command = [sys.executable, "-c", PROGRAM, "analyze", str(places.get(kind, tmp_path)), "--format", output_format]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    status, slow = json.loads(ended.stderr.splitlines()[-1])
    assert status == 0, ended.stderr
    assert len(ended.stdout) > 500
    assert ("pandas" in slow) == (output_format == "csv"), slow
    assert output_format == "csv" or slow == []
