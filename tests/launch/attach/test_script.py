"""A script that is run by dpscope behaves as one that Python runs."""

import os
import pickle
import sys
from pathlib import Path

import pytest

from dpscope.launch.attach.script import run_script


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(text)
    return str(path)


def test_it_is_main_with_its_arguments_and_its_folder_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own_helper.py").write_text("NAME = 'helper'")
    told: list[str] = []
    path = script(
        tmp_path,
        "import sys, own_helper, pickle\nclass Batch: pass\nmade = pickle.dumps(Batch())\n"
        "print(__name__, __file__ == sys.argv[0], sys.argv[1:], own_helper.NAME)",
    )
    run_script([path, "--lr", "1"], told.append)
    assert capsys.readouterr().out == "__main__ True ['--lr', '1'] helper\n"
    assert told == ["the script ended"]
    assert type(pickle.loads(sys.modules["__main__"].made)).__name__ == "Batch"  # spawned workers find it, as at exit


def test_a_module_is_run_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_module.py").write_text("import sys; print(__name__, sys.argv[1:])")
    run_script(["-m", "their_module", "--epochs", "2"], lambda how: None)
    assert capsys.readouterr().out == "__main__ ['--epochs', '2']\n"


def test_what_it_raises_is_shown_from_its_own_first_line_and_ends_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    with pytest.raises(SystemExit) as ended:
        run_script([script(tmp_path, "def f():\n    raise ValueError('theirs')\nf()")], told.append)
    shown = capsys.readouterr().err
    assert ended.value.code == 1
    assert told == ["the script raised ValueError"]
    assert shown.startswith("Traceback (most recent call last):\n")
    assert shown.count('  File "') == 2  # its two frames and none of dpscope's
    assert shown.endswith("ValueError: theirs\n")


@pytest.mark.parametrize("code", [0, 3])
def test_its_exit_status_stays(tmp_path: Path, code: int) -> None:
    told: list[str] = []
    with pytest.raises(SystemExit) as ended:
        run_script([script(tmp_path, f"import sys; sys.exit({code})")], told.append)
    assert ended.value.code == code
    assert told == [f"the script exited with status {code}"]


def test_an_interrupt_stays_one(tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        run_script([script(tmp_path, "raise KeyboardInterrupt")], told.append)
    assert told == ["the script was interrupted"]


def test_what_was_measured_is_saved_before_it_calls_os_exit_but_not_in_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[int] = []
    told: list[str] = []

    def end(status: int) -> None:
        ends.append(status)

    monkeypatch.setattr(os, "_exit", end)
    run_script([script(tmp_path, "import os; os._exit(5)")], told.append)
    assert (ends, told[0]) == ([5], "the script called os._exit(5)")
    child = "import os; own = os.getpid; os.getpid = lambda: 0; os._exit(6); os.getpid = own"
    told.clear()
    run_script([script(tmp_path, child)], told.append)
    assert (ends, told) == ([5, 6], ["the script ended"])
