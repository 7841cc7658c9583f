"""Commands that take seconds show on a terminal what they are doing, and nothing on standard error
elsewhere.
"""

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpscope.launch.contents import app
from tests.helpers.paths import EXAMPLE_RUN

COMMANDS = {
    "analyze": ["Reading traces: ddp-d2-b8", "Comparing cells", "Writing the report"],
    "bundle": [
        "Checking this machine: tracer",
        "Packing traces: cells/ddp-d2-b8/repeat0",
        "Writing run-bundle.zip",
    ],
}


@pytest.mark.process
@pytest.mark.parametrize("command", COMMANDS)
def test_a_terminal_shows_what_a_command_is_doing(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = COMMANDS[command]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpscope.analysis.figures.draw.RUN_FIGURES", ())  # which take seconds
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    shown = CliRunner(env={"FORCE_COLOR": "1", "COLUMNS": "200"}).invoke(app, [command, "run"])
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", shown.stderr)
    assert [one for one in expected if one not in line] == []
    (tmp_path / "run-bundle.zip").unlink(missing_ok=True)
    silent = CliRunner(env={"FORCE_COLOR": None}).invoke(app, [command, "run"])
    assert silent.exit_code == shown.exit_code
    assert [
        one
        for one in silent.stderr.splitlines()
        if "..." in one or any(part in one for part in expected)
    ] == []
