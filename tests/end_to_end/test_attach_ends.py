"""`dpscope attach` that is killed or stopped, as its job starts and while it measures: nothing is left running."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.sweeps import command_of, parent_of, processes_of, wait_until

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
    """`dpscope attach` on two processes, whose output is in `printed.txt`; all of it is ended afterwards."""
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "dpscope.launch.cli", "attach", "--devices", "2", "--out", str(folder / "run")]
    with open(folder / "printed.txt", "w") as printed:
        running = subprocess.Popen(
            [*command, "--steps", "50000", "--", str(folder / "train.py")],
            stdout=printed,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield running
    finally:
        for process in processes_of(folder):
            os.kill(process, signal.SIGKILL)
        running.wait()


def torchrun_of(running: "subprocess.Popen[str]", folder: Path) -> int:
    """Its process, once it has become torchrun."""
    found = [
        one for one in processes_of(folder) if parent_of(one) == running.pid and b"parent_death" not in command_of(one)
    ]
    return found[0] if found else 0


def ranks_of(running: "subprocess.Popen[str]", folder: Path) -> list[int]:
    torchrun = torchrun_of(running, folder)
    return [one for one in processes_of(folder) if torchrun and parent_of(one) == torchrun]


def wait_until_it_trains(running: "subprocess.Popen[str]", folder: Path) -> None:
    wait_until(lambda: running.poll() is not None or len(re.findall("trains", printed(folder))) == 2)
    assert running.poll() is None, printed(folder)


def printed(folder: Path) -> str:
    return (folder / "printed.txt").read_text()


KILLS = [
    (victim, number)
    for victim, numbers in {
        "dpscope": (signal.SIGKILL, signal.SIGTERM),
        "torchrun": (signal.SIGKILL, signal.SIGTERM),
        "rank": (signal.SIGKILL,),
    }.items()
    for number in numbers
]


@pytest.mark.parametrize(("victim", "number"), KILLS)
def test_a_kill_while_it_measures_leaves_nothing(tmp_path: Path, victim: str, number: signal.Signals) -> None:
    with attached(tmp_path) as running:
        wait_until_it_trains(running, tmp_path)
        torchrun = torchrun_of(running, tmp_path)
        chosen = {"dpscope": running.pid, "torchrun": torchrun, "rank": ranks_of(running, tmp_path)[-1]}[victim]
        os.kill(chosen, number)
        status = running.wait(timeout=40)
        wait_until(lambda: processes_of(tmp_path) == [], timeout_s=10)
        if victim == "dpscope":
            assert status == (-number if number == signal.SIGKILL else 128 + number)
            assert "SignalException" not in printed(tmp_path)  # what torchrun raises; the script may show its own
        elif victim == "torchrun":
            assert status == 128 + number
        else:
            assert status == 1


@pytest.mark.parametrize(
    ("seen", "number"), [("torchrun", signal.SIGKILL), ("torchrun", signal.SIGTERM), ("ranks", signal.SIGHUP)]
)
def test_a_kill_as_its_job_starts_leaves_nothing(tmp_path: Path, seen: str, number: signal.Signals) -> None:
    with attached(tmp_path) as running:
        looked_for = torchrun_of if seen == "torchrun" else ranks_of
        wait_until(lambda: bool(looked_for(running, tmp_path)))
        os.kill(running.pid, number)
        assert running.wait(timeout=40) == (-number if number == signal.SIGKILL else 128 + number)
        wait_until(lambda: processes_of(tmp_path) == [], timeout_s=10)


def test_a_second_one_in_the_same_folder_is_refused_and_the_first_can_be_interrupted(tmp_path: Path) -> None:
    with attached(tmp_path) as running:
        wait_until_it_trains(running, tmp_path)
        options = ("--out", str(tmp_path / "run"))
        attach = [sys.executable, "-m", "dpscope.launch.cli", "attach", *options, "--devices", "1"]
        by_hand = [sys.executable, "-m", "dpscope.launch.attach", *options]
        for command in ([*attach, "--steps", "50000", "--"], [*by_hand, "--steps", "50000"]):
            second = subprocess.run(
                [*command, str(tmp_path / "train.py")],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert second.returncode == 2
            assert second.stderr == (
                f"dpscope: --out {tmp_path / 'run'}: another dpscope is writing it; wait for it, or name another\n"
            )
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=40) == 128 + signal.SIGINT
        wait_until(lambda: processes_of(tmp_path) == [], timeout_s=10)
        assert "SignalException" not in printed(tmp_path)
