"""A job that a command waits for: done when its result says so, else told in one line. Python stands in for torchrun."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.launch.jobs.attended_job import attend_job, check_done
from dpscope.launch.jobs.job_files import PROGRESS_NAME
from dpscope.launch.jobs.stop_request import StoppedError, StopRequest
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import JobFolder

pytestmark = pytest.mark.process


def told(path: Path, code: str, timeout_s: float = 60.0, stop: bool = False) -> tuple[str, str]:
    """What is raised of a job that runs `code` (empty: nothing), and what is printed."""
    folder, shown, request = JobFolder(path), Console(file=io.StringIO(), width=200), StopRequest()
    request.requested = stop
    outcome = attend_job([sys.executable, "-c", code], folder, 1, timeout_s, "A job", request, shown)
    assert not (path / PROGRESS_NAME).exists()
    assert isinstance(shown.file, io.StringIO)
    try:
        check_done(outcome, "it failed", request, shown)
    except StoppedError as error:
        return f"{error} [{error.exit_status}]", shown.file.getvalue()
    except DpscopeError as error:
        return str(error), shown.file.getvalue()
    return "", shown.file.getvalue()


RESULT = "open('{}/result.json', 'w').write('{{\"status\": \"{}\"}}')"
PASS = "open('{}/" + PROGRESS_NAME + "', 'w').write('timed')"


def test_a_job_is_done_when_its_result_says_so(tmp_path: Path) -> None:
    assert told(tmp_path, f"{PASS.format(tmp_path)}; {RESULT.format(tmp_path, 'ok')}")[0] == ""


def test_a_job_without_a_result_failed_however_it_exits(tmp_path: Path) -> None:
    line, printed = told(tmp_path / "a", "print('[rank0]: no such device'); raise SystemExit(3)")
    assert line == "it failed: torchrun ended with exit status 3 and no result (before its first pass)"
    assert printed == "[rank0]:  no such device\n"
    silent, _ = told(tmp_path / "b", "")
    assert silent == "it failed: torchrun ended with exit status 0 and no result (before its first pass)"
    (tmp_path / "c").mkdir()
    begun, _ = told(tmp_path / "c", f"{PASS.format(tmp_path / 'c')}; {RESULT.format(tmp_path / 'c', 'crashed')}")
    assert begun == "it failed: torchrun ended with exit status 0 and no result (in its timed pass)"


def test_a_job_that_is_too_slow_or_told_to_stop_is_ended(tmp_path: Path) -> None:
    assert "passed its time limit of 0.3 s" in told(tmp_path / "a", "import time; time.sleep(60)", timeout_s=0.3)[0]
    line, printed = told(tmp_path / "b", "import time; time.sleep(60)", stop=True)
    assert line == "it failed: interrupted [143]"  # 128 + SIGTERM
    assert "rank" not in printed


def test_what_a_killed_process_was_writing_is_removed_and_other_hidden_files_stay(tmp_path: Path) -> None:
    (tmp_path / ".tmp-failure_0_1.json-xr17fgzj").write_text('{"rank": 1, "at_')
    (tmp_path / ".tmp-mine").write_text("not dpscope's")
    told(tmp_path, RESULT.format(tmp_path, "ok"))
    assert sorted(path.name for path in tmp_path.glob(".tmp-*")) == [".tmp-mine"]
