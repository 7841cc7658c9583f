"""A folder that one process alone writes in."""

import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.launch.jobs.out_folder import claim
from dpscope.profiling.store.errors import DpscopeError

CLAIM = (
    "import sys, pathlib; from dpscope.launch.jobs.out_folder import claim; claim(pathlib.Path(sys.argv[1])); "
    "print('claimed', flush=True); sys.stdin.read()"
)


@pytest.mark.process
def test_one_job_at_a_time_measures_a_repeat(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLAIM, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"claimed\n"
        with pytest.raises(DpscopeError, match="another job is measuring it; wait for that one"):
            claim(tmp_path)
        other.kill()
        other.wait()
        claim(tmp_path)
