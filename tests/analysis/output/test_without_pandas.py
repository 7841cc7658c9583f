"""`dpscope analyze TRACE` imports no pandas, pyarrow or scipy, which take longer to import than the
trace takes to read.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.generated_traces.generator import dp_trace, gloo_trace, write_ddp_job, write_trace
from tests.helpers.paths import DATA

A100, V100 = DATA / "a100x2_ddp_resnet50_rank0.json.gz", DATA / "v100x8_ddp_dlrm"
PROGRAM = """
import json, sys
from dpscope.launch.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = ['analyze', *arguments]
    try:
        main()
    except SystemExit as ended:
        status = ended.code
    slow = sorted({name.split('.')[0] for name in sys.modules} & {'pandas', 'pyarrow', 'scipy', 'matplotlib'})
    sys.stderr.write(json.dumps([status or 0, slow]) + '\\n')
"""


@pytest.mark.process
def test_only_a_table_for_programs_is_a_data_frame(tmp_path: Path) -> None:
    """One process after another kind of trace and format; the last one writes CSV."""
    ddp, dp, gloo = write_ddp_job(tmp_path / "ddp", 4), tmp_path / "dp.json", tmp_path / "gloo"
    write_trace(dp_trace(2).trace, dp)
    gloo.mkdir()
    for rank in range(2):
        write_trace(gloo_trace(rank, 2).trace, gloo / f"0_{rank}.pt.trace.json")
    places = (
        (A100, "table"),
        (A100, "markdown"),
        (V100, "json"),
        (ddp, "table"),
        (dp, "table"),
        (gloo, "table"),
        (A100, "csv"),
    )
    calls = json.dumps([[str(place), "--format", shown] for place, shown in places])
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, calls],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *found, (status, slow) = map(json.loads, ended.stderr.splitlines()[-len(places) :])
    assert found == [[0, []]] * (len(places) - 1)
    assert status == 0
    assert "pandas" in slow
