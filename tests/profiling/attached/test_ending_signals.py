"""A script that a signal ends during the measurement ends by that signal, and its measurement is saved."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dpscope.profiling.attached.ending_signals import EndingSignals
from dpscope.profiling.store.folders import RunFolder

STUCK = """
import ctypes, sys, torch
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters())
for _ in range({steps}):
    model(torch.ones(8, 3)).sum().backward()
    optimizer.step()
print("trained", flush=True)
mutex = (ctypes.c_char * 64)()
for _ in range(2):  # blocks in C for ever, as in a collective without its peers: Python's handlers do not run
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.process
def test_a_terminated_script_saves_its_timed_steps_and_ends_by_the_signal(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STUCK.format(steps=5 + 8 + 7))
    attach = [sys.executable, "-m", "dpscope.launch.attach", "--out", "run", "--warmup", "5", "train.py"]
    script = subprocess.Popen(attach, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert script.stdout is not None
    assert script.stdout.readline() == "trained\n"
    script.send_signal(signal.SIGTERM)
    _, errors = script.communicate(timeout=60)
    assert script.returncode == -signal.SIGTERM
    assert (
        errors == "dpscope: SIGTERM ended the script: 7 of 50 steps were timed, 3 traced; what was measured is saved\n"
    )
    run = RunFolder(tmp_path / "run")
    (planned,) = run.manifest().plan
    ((_, repeat),) = run.done_repeats(planned.cell)
    (rank,) = repeat.ranks()
    assert (rank.blocks[0].steps, planned.cell.name) == (7, "single-d1-b8")
    assert {"script_ended_early", "batch_as_seen"} == {finding.code for finding in rank.findings}
    assert [path.name for path in (tmp_path / "run" / "cells").iterdir()] == ["single-d1-b8"]


def test_signals_with_a_handler_of_the_script_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script handles one from the start and one later, and stores and restores handlers as libraries do."""
    ended: list[str] = []
    theirs: list[int] = []
    killed: list[int] = []
    monkeypatch.setattr("dpscope.profiling.attached.ending_signals._end_by", killed.append)
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, lambda number, frame: theirs.append(number))
        signals = EndingSignals(ended.append)
        signals.listen()
        os.kill(os.getpid(), signal.SIGHUP)
        stored = signal.signal(signal.SIGTERM, lambda number, frame: theirs.append(number))
        os.kill(os.getpid(), signal.SIGTERM)
        signals.stop()
        for thread in threading.enumerate():
            if thread.name == "dpscope signals":
                thread.join(5)
        assert (ended, killed, theirs) == ([], [], [signal.SIGHUP, signal.SIGTERM])
        signal.signal(signal.SIGTERM, stored)  # restored after `stop`: it must not swallow the signal
        os.kill(os.getpid(), signal.SIGTERM)
        assert killed == [signal.SIGTERM]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signals = EndingSignals(ended.append)
        signals.listen()
        signals.stop()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.process
def test_a_signal_to_a_child_of_the_script_ends_only_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signals = EndingSignals(ended.append)
    signals.listen()
    try:
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
        assert ended == []
    finally:
        signals.stop()
        signal.signal(signal.SIGTERM, before)


@pytest.mark.process
def test_a_signal_to_a_child_forked_in_another_thread_ends_only_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a thread that starts a loader's workers."""
    ended: list[str] = []
    killed: list[int] = []
    children: list[int] = []
    monkeypatch.setattr("dpscope.profiling.attached.ending_signals._end_by", killed.append)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signals = EndingSignals(ended.append)
    signals.listen()
    reading, writing = os.pipe()

    def fork() -> None:
        if (child := os.fork()) == 0:
            os.write(writing, b"1")
            signal.pause()
            os._exit(0)
        children.append(child)

    try:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        os.read(reading, 1)
        os.kill(children[0], signal.SIGTERM)
        _, status = os.waitpid(children[0], 0)
        assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM
    finally:
        signals.stop()
        for other in threading.enumerate():
            if other.name == "dpscope signals":
                other.join(5)
        signal.signal(signal.SIGTERM, before)
    assert (ended, killed) == ([], [])
