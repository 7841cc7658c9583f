"""Tests in forks (`--workers`): all are reported once, also behind one in which a worker dies, and
fixtures end as without workers.
"""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.helpers.paths import ROOT

FIRST = """
import os, random, warnings, pytest

@pytest.fixture(scope="module")
def resource(tmp_path_factory):
    yield tmp_path_factory.getbasetemp().name
    open({ends!r}, "a").write("module ")

def test_in_a_worker(resource):
    assert resource == "worker0"
    print("printed within")
    warnings.warn("warned of")

def test_dies(resource):
    os.kill(os.getpid(), 9)

def test_behind(resource):
    assert resource == "worker2"

def test_fails():
    print("printed before")
    assert False
"""
SECOND = """
def test_other():
    pass
"""
RUN = "import sys, pytest; from tests.helpers.forked_workers import ForkedWorkers; \
sys.exit(pytest.main(sys.argv[1:], plugins=[ForkedWorkers(2)]))"


@pytest.mark.process
@pytest.mark.long
def test_every_test_is_reported_once(tmp_path: Path) -> None:
    ends, junit = tmp_path / "ends.txt", tmp_path / "junit.xml"
    (tmp_path / "test_first.py").write_text(FIRST.format(ends=str(ends)))
    (tmp_path / "test_second.py").write_text(SECOND)
    options = ("-q", "-p", "no:cacheprovider", f"--junit-xml={junit}", str(tmp_path))
    command = [sys.executable, "-c", RUN, *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ended.returncode == pytest.ExitCode.TESTS_FAILED, ended.stdout + ended.stderr
    cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    failed = {case.get("name"): case.find("failure") is not None for case in cases}
    assert len(cases) == len(failed)
    assert failed == {
        "test_in_a_worker": False,
        "test_dies": True,
        "test_behind": False,
        "test_fails": True,
        "test_other": False,
    }
    assert "the worker ended with status -9" in ended.stdout
    assert "printed before" in ended.stdout
    assert "printed within" not in ended.stdout
    assert "warned of" in ended.stdout
    assert ends.read_text() == "module "  # of the worker that went on
