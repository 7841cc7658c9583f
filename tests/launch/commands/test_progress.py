"""Commands that take seconds show on a terminal what they are doing, and nothing on standard error elsewhere."""

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpscope.launch.cli import app
from tests.helpers.paths import EXAMPLE_RUN

COMMANDS = [
    (["doctor"], ["Checking this machine: torch", "Checking this machine: disk"]),
    (["analyze", "RUN"], ["Reading traces: ddp-d2-b8", "Comparing cells", "Writing the report"]),
    (["merge", "RUN", "--cell", "ddp-d2-b8", "-o", "merged.json"], ["Merging 2 traces"]),
    (["compare", "RUN", "RUN"], ["Reading traces: ddp-d2-b8", "Comparing run with run"]),
    (
        ["whatif", "RUN", "--devices", "4"],
        ["Replaying the base", "Predicting: 1 scenario", "Removing one part at a time"],
    ),
    (
        ["bundle", "RUN"],
        ["Checking this machine: tracer", "Packing traces: cells/ddp-d2-b8/repeat0", "Writing run-bundle.zip"],
    ),
]


@pytest.mark.process
@pytest.mark.parametrize(("arguments", "expected"), COMMANDS, ids=[arguments[0] for arguments, _ in COMMANDS])
def test_a_terminal_shows_what_a_command_is_doing(
    arguments: list[str], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    typed = [{"RUN": "run"}.get(word, word) for word in arguments]
    shown = CliRunner(env={"FORCE_COLOR": "1", "COLUMNS": "200"}).invoke(app, typed)
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", shown.stderr)
    assert [one for one in expected if one not in line] == []
    for made in ("merged.json", "run-bundle.zip"):
        (tmp_path / made).unlink(missing_ok=True)
    silent = CliRunner(env={"FORCE_COLOR": None}).invoke(app, typed)
    assert silent.exit_code == shown.exit_code
    assert [one for one in silent.stderr.splitlines() if "..." in one or any(part in one for part in expected)] == []
