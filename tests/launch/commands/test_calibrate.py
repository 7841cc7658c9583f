"""`dpscope calibrate` of logs: what is printed first, and the exit status."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpscope.launch.contents import app
from tests.helpers.paths import DATA


@pytest.mark.long
def test_wrong_results_stand_first_and_fail(tmp_path: Path) -> None:
    sound = DATA / "nccl_tests" / "nccl_allreduce.log"
    wrong = tmp_path / "wrong.log"
    wrong.write_text(sound.read_text().replace("values : 0 OK", "values : 3 FAILED"))
    for log, status in ((sound, 0), (wrong, 1)):
        out = tmp_path / f"{log.stem}.json"
        ended = CliRunner().invoke(
            app, ["calibrate", "--from-nccl-tests", str(log), "--out", str(out)]
        )
        assert ended.exit_code == status
        assert ended.stdout.startswith("WRONG RESULTS: wrong.log") == bool(status)
        assert out.is_file()


@pytest.mark.long
def test_the_next_run_is_on_the_machine_of_the_logs(tmp_path: Path) -> None:
    log = DATA / "nccl_tests" / "nccl_allreduce.log"
    words = ["calibrate", "--from-nccl-tests", str(log), "--out", str(tmp_path / "run")]
    printed = CliRunner().invoke(app, words).stdout
    assert "Next, on the machine of the logs: dpscope run --out" in printed
