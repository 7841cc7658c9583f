"""What users name is printed as it is: square brackets are no markup."""

import shutil
import sys
from pathlib import Path

import pytest

from dpscope.launch import cli
from tests.helpers.paths import EXAMPLE_RUN

MARKED = "[bold]x"


def printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    monkeypatch.setattr(sys, "argv", ["dpscope", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit):
        cli.main()
    return capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["analyze", "run", "--report", MARKED], f"{MARKED}/report.html"),
        (["merge", "run", "-o", f"{MARKED}.json"], f"{MARKED}.json"),
        (["bundle", "run", "-o", f"{MARKED}.zip"], f"{MARKED}.zip"),
        (["reduce", "run/cells/ddp-d2-b8/repeat0/traces", "-o", f"{MARKED}.dpscope"], f"{MARKED}.dpscope"),
    ],
)
def test_brackets_of_a_path_are_printed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dpscope.launch.commands.bundle._machine_notes", dict)  # it starts processes
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run")
    assert named in printed(monkeypatch, capsys, *arguments)
