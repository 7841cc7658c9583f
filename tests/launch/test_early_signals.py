"""A signal in the first seconds of a command, before a job is there to end: one line, status 128 +
its number.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_BEGINS = (
    "from dpscope.launch import cli, contents; "
    "contents.app = lambda: (print('begun', flush=True), __import__('time').sleep(60)); "
)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_one_line(number: signal.Signals) -> None:
    # also where the tests themselves were started by nohup
    default = f"import signal; signal.signal({number}, signal.SIG_DFL); "
    command = subprocess.Popen(
        [sys.executable, "-c", f"{default}{_BEGINS}cli.main()"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stdout is not None
    assert command.stdout.readline() == "begun\n"
    command.send_signal(number)
    _, errors = command.communicate(timeout=20)
    assert errors == f"dpscope: stopped by {number.name}\n"
    assert command.returncode == 128 + number


@pytest.mark.process
@pytest.mark.long
def test_a_signal_whose_exception_is_lost_still_ends_the_command() -> None:
    """As while Python frees an object: it prints and drops what is raised there."""
    loses = (
        "import time\nfrom dpscope.launch import cli, contents\ncli._CLEANED_UP_S = 0.5\n"
        "class Freed:\n    def __del__(self):\n        print('begun', flush=True)\n        time.sleep(2)\n"
        "def app():\n    Freed()\n    time.sleep(60)\n"
        "contents.app = app\ncli.main()"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", loses], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    assert command.stdout.readline() == "begun\n"
    command.send_signal(signal.SIGTERM)
    _, errors = command.communicate(timeout=20)
    assert errors.endswith("dpscope: stopped by SIGTERM\n")
    assert command.returncode == 143


@pytest.mark.process
def test_an_ignored_signal_stays_ignored() -> None:
    """As nohup has it."""
    ends = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); "
    works = f"{ends}{_BEGINS.replace('sleep(60)', 'sleep(1)')}cli.main()"
    command = subprocess.Popen([sys.executable, "-c", works], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    assert command.stdout.readline() == "begun\n"
    command.send_signal(signal.SIGHUP)
    command.communicate(timeout=20)
    assert command.returncode == 0


@pytest.mark.process
@pytest.mark.parametrize(
    "arrives",
    [
        "cli._print_in_any_encoding = lambda: signal.raise_signal(signal.SIGTERM)",
        "class Commands:\n    def find_spec(self, name, *_):\n        if name == 'typer':\n"
        "            signal.raise_signal(signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Commands())",
    ],
    ids=["at once", "while the commands are loaded"],
)
def test_signals_are_taken_before_the_commands_are_loaded(arrives: str) -> None:
    """Loading the command line takes most of the time until a command begins."""
    imports = (
        "import signal, sys\nfrom dpscope.launch import cli\nassert 'typer' not in sys.modules\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", f"{imports}{arrives}\ncli.main()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (143, "dpscope: stopped by SIGTERM\n")


@pytest.mark.process
@pytest.mark.long
@pytest.mark.real_processes
@pytest.mark.parametrize(
    "command",
    [
        ("run", "--device", "cpu", "--devices", "2"),
        ("train", "--devices", "2"),
        ("attach", "--", "train.py"),
    ],
)
def test_a_real_command_is_stopped_as_soon_as_it_takes_signals(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    name, *options = command
    (tmp_path / "train.py").write_text("import time; time.sleep(60)")
    whole = [
        sys.executable,
        "-m",
        "dpscope.launch.cli",
        name,
        "--out",
        str(tmp_path / "out"),
        *options,
    ]
    with open(tmp_path / "errors", "w") as file:
        running = subprocess.Popen(whole, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=file)
        caught = 0
        # the kernel's set of signals that the process takes (proc(5))
        while not caught & 1 << (signal.SIGTERM - 1):
            status = Path(f"/proc/{running.pid}/status").read_text()
            caught = int(status.partition("SigCgt:")[2].split()[0], 16)
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        assert running.wait(timeout=60) == 143
    errors = (tmp_path / "errors").read_text()
    assert errors == "dpscope: stopped by SIGTERM\n"
    assert not [one for one in os.listdir(tmp_path) if one.startswith(".tmp")]
