"""A failed test marked `timed` is left to be repeated alone, unless another one failed, too."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.paths import ROOT

TESTS = """
import pytest

@pytest.mark.timed
def test_timed():
    assert False

def test_counted():
    assert {counted}
"""
RUN = (
    "import sys, pytest; from pathlib import Path; from tests.helpers.disturbed import Disturbed; \
sys.exit(pytest.main(sys.argv[2:], plugins=[Disturbed(Path(sys.argv[1]))]))"
)


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize(("counted", "status"), [(True, 0), (False, 1)])
def test_only_disturbed_tests_are_left(tmp_path: Path, counted: bool, status: int) -> None:
    tested = tmp_path / "test_made.py"
    tested.write_text(TESTS.format(counted=counted))
    file = tmp_path / "disturbed.txt"
    arguments = [str(file), "-q", "-n", "1", "-p", "no:cacheprovider", str(tested)]
    ended = subprocess.run([sys.executable, "-c", RUN, *arguments], cwd=ROOT, capture_output=True)
    assert ended.returncode == status, ended.stdout
    repeated = file.read_text().strip()
    assert repeated.endswith("test_timed") if counted else repeated == ""
