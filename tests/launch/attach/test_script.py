"""A script run by dpscope behaves as when run by Python."""

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


def test_a_script_is_main_with_its_arguments_and_its_folder_first_on_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_helper.py").write_text("NAME = 'helper'")
    ends: list[str] = []
    path = script(
        tmp_path,
        "import sys, own_helper, pickle\nclass Batch: pass\nmade = pickle.dumps(Batch())\n"
        "print(__name__, __file__ == sys.argv[0], sys.argv[1:], own_helper.NAME)",
    )
    run_script([path, "--lr", "1"], ends.append)
    assert capsys.readouterr().out == "__main__ True ['--lr', '1'] helper\n"
    assert ends == ["the script ended"]
    # spawned workers find it, as at exit
    assert type(pickle.loads(sys.modules["__main__"].made)).__name__ == "Batch"


def test_a_script_has_the_paths_that_python_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """__file__ is absolute, even after the script changes its folder; modules are searched where a
    link to a script points.
    """
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("import sys; seen = __file__, sys.argv[0], sys.path[0]")
    (tmp_path / "link.py").symlink_to("code/train.py")
    monkeypatch.chdir(tmp_path)
    for given in ("link.py", "code/../link.py"):
        run_script([given], lambda how: None)
        assert sys.modules["__main__"].seen == (f"{tmp_path}/{given}", given, f"{tmp_path}/code")


def test_a_module_is_run_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_module.py").write_text("import sys; print(__name__, sys.argv[1:])")
    run_script(["-m", "their_module", "--epochs", "2"], lambda how: None)
    assert capsys.readouterr().out == "__main__ ['--epochs', '2']\n"


def test_an_exception_is_printed_from_the_scripts_first_frame_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[str] = []
    with pytest.raises(SystemExit) as ended:
        run_script([script(tmp_path, "def f():\n    raise ValueError('theirs')\nf()")], ends.append)
    printed = capsys.readouterr().err
    assert ended.value.code == 1
    assert ends == ["the script raised ValueError"]
    assert printed.startswith("Traceback (most recent call last):\n")
    assert printed.count('  File "') == 2  # its two frames and none of dpscope's
    assert printed.endswith("ValueError: theirs\n")


@pytest.mark.parametrize(
    ("text", "raised", "how"),
    [
        ("import sys; sys.exit(0)", SystemExit(0), "the script exited with status 0"),
        ("import sys; sys.exit(3)", SystemExit(3), "the script exited with status 3"),
        ("raise KeyboardInterrupt", KeyboardInterrupt(), "the script was interrupted"),
    ],
)
def test_the_exit_status_is_the_scripts(
    tmp_path: Path, text: str, raised: BaseException, how: str
) -> None:
    ends: list[str] = []
    with pytest.raises(type(raised)) as ended:
        run_script([script(tmp_path, text)], ends.append)
    assert (ended.value.args, ends) == (raised.args, [how])


def test_measurements_are_saved_before_os_exit_except_in_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []
    ends: list[str] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    run_script([script(tmp_path, "import os; os._exit(5)")], ends.append)
    assert (statuses, ends[0]) == ([5], "the script called os._exit(5)")
    child = "import os; own = os.getpid; os.getpid = lambda: 0; os._exit(6); os.getpid = own"
    ends.clear()
    run_script([script(tmp_path, child)], ends.append)
    assert (statuses, ends) == ([5, 6], ["the script ended"])
