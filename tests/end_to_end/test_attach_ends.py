"""`dpscope attach` that is killed or stopped, as its job starts and while it measures: nothing is
left running.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.helpers.fork_server import RANKS_ALONE, forks
from tests.helpers.sweeps import command_of, parent_of, processes_of, wait_until
from tests.helpers.words import words

pytestmark = pytest.mark.real_processes  # their ends are what these tests are about

SCRIPT = """
import os, sys, time, torch
from torch import distributed, nn
distributed.init_process_group("gloo")
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters())
loader = torch.utils.data.DataLoader([torch.ones(3)] * 100000, batch_size=8, num_workers=1)
for step, batch in enumerate(loader):
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    if step == 10:
        print(f"trains{os.environ['RANK']}", flush=True)
"""


@contextmanager
def attached(folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """`dpscope attach` on two processes, whose output is in `printed.txt`; all of it is ended
    afterwards.
    """
    (folder / "train.py").write_text(SCRIPT)
    command = [
        sys.executable,
        *words("-m dpscope.launch.cli attach --devices 2 --out"),
        str(folder / "run"),
    ]
    with open(folder / "printed.txt", "w") as printed:
        running = subprocess.Popen(
            [*command, "--steps", "50000", "--", str(folder / "train.py")],
            stdout=printed,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield running
    finally:
        for process in processes_of(folder):
            os.kill(process, signal.SIGKILL)
        running.wait()


def torchrun_of(running: "subprocess.Popen[str]", folder: Path) -> list[int]:
    """Its process, once it has become torchrun."""
    own = [one for one in processes_of(folder) if parent_of(one) == running.pid]
    return [one for one in own if b"parent_death" not in command_of(one)]


def ranks_of(running: "subprocess.Popen[str]", folder: Path) -> list[int]:
    torchrun = torchrun_of(running, folder)
    return [one for one in processes_of(folder) if parent_of(one) in torchrun]


def wait_until_it_trains(running: "subprocess.Popen[str]", folder: Path) -> None:
    wait_until(lambda: running.poll() is not None or printed(folder).count("trains") == 2)
    assert running.poll() is None, printed(folder)


def printed(folder: Path) -> str:
    return (folder / "printed.txt").read_text()


@pytest.mark.parametrize(
    ("moment", "victim", "number", "expected"),
    [
        ("trains", "torchrun", signal.SIGKILL, 137),
        ("torchrun starts", "dpscope", signal.SIGKILL, -9),
        ("ranks start", "dpscope", signal.SIGHUP, 129),
    ],
)
def test_a_kill_leaves_nothing(
    tmp_path: Path, moment: str, victim: str, number: signal.Signals, expected: int
) -> None:
    trains = moment == "trains"
    with forks(RANKS_ALONE) if trains else nullcontext(), attached(tmp_path) as running:
        if trains:
            wait_until_it_trains(running, tmp_path)
        else:
            looked_for = torchrun_of if moment == "torchrun starts" else ranks_of
            wait_until(lambda: looked_for(running, tmp_path) != [])
        os.kill(torchrun_of(running, tmp_path)[-1] if victim == "torchrun" else running.pid, number)
        assert running.wait(timeout=40) == expected
        wait_until(lambda: processes_of(tmp_path) == [], timeout_s=10)
        if victim == "dpscope":
            # what torchrun raises; the script may show its own
            assert "SignalException" not in printed(tmp_path)


def test_a_second_one_in_the_same_folder_is_refused_and_the_first_can_be_interrupted(
    tmp_path: Path,
) -> None:
    with forks(), attached(tmp_path) as running:
        wait_until_it_trains(running, tmp_path)
        options = ("--out", str(tmp_path / "run"), "--steps", "50000")
        for words in (("cli", "attach", *options, "--devices", "1", "--"), ("attach", *options)):
            command = [
                sys.executable,
                "-m",
                f"dpscope.launch.{words[0]}",
                *words[1:],
                str(tmp_path / "train.py"),
            ]
            second = subprocess.run(
                command, capture_output=True, text=True, timeout=60, check=False
            )
            refused = f"--out {tmp_path / 'run'}: another dpscope is writing it; wait for it, or name another"
            assert (second.returncode, second.stderr) == (2, f"dpscope: {refused}\n")
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=40) == 128 + signal.SIGINT
        wait_until(lambda: processes_of(tmp_path) == [], timeout_s=10)
        assert "SignalException" not in printed(tmp_path)
