"""How runs end before they are done: Ctrl-C, a time limit, kill -9; and a training that goes on where it was interrupted."""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpscope.launch.acceptance.cells import SMALL
from dpscope.launch.acceptance.run import TOKEN_VARIABLE
from dpscope.launch.acceptance.verdict import CheckVerdict, at_most, equals
from dpscope.launch.acceptance.workplace import Workplace, last_line
from dpscope.launch.jobs.torchrun import processes_with
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import RESULT_NAME

_BEGINS_S, _ENDS_S, _POLL_S = 60.0, 30.0, 0.1
_TRAINING = ("--strategy", "single", "--devices", "1", "--data", "fake", "--samples", "512", "--batch-size", "32")


def endings(place: Workplace) -> list[CheckVerdict]:
    """Each way: what the command says, how soon it is over, and that nothing of it runs on."""
    return [*_signalled(place, "ctrl_c", signal.SIGINT, 130), *_killed(place), *_timed_out(place)]


def _signalled(place: Workplace, name: str, number: signal.Signals, wanted: int) -> list[CheckVerdict]:
    running = _long_run(place, name)
    began_s = time.monotonic()
    running.send_signal(number)
    status = _ended(running)
    took_s = time.monotonic() - began_s
    return [
        equals(f"k.{name}", f"status_{status}", f"status_{wanted}"),
        at_most(f"k.{name}_over_after", took_s, _ENDS_S, "s"),
        _none_left(f"k.{name}_left_running"),
    ]


def _killed(place: Workplace) -> list[CheckVerdict]:
    """kill -9 of dpscope itself: its workers must not outlive it."""
    running = _long_run(place, "kill_9")
    running.kill()
    running.wait()
    return [_none_left("k.kill_9_left_running")]


def _timed_out(place: Workplace) -> list[CheckVerdict]:
    run = place.folder / "time_out"
    ended = place.dpscope("run", *_flags(place, run), "--steps", "1000000", "--timeout", "20", "--quiet")
    results = [read_json(path, dict) for path in run.glob(f"cells/*/*/{RESULT_NAME}")]
    status = results[0]["status"] if results else last_line(ended.stderr)
    return [equals("k.time_out", status, "timed_out"), _none_left("k.time_out_left_running")]


def _flags(place: Workplace, run: Path) -> tuple[object, ...]:
    small = tuple(part for part in SMALL if part not in ("--timeout", "120"))
    return ("--device", place.kind, "--strategy", "single", "--devices", "1", *small, "--repeats", "1", "--out", run)


def _long_run(place: Workplace, name: str) -> "subprocess.Popen[bytes]":
    """A run that would take hours, once its worker works."""
    run = place.folder / name
    command = place.command("run", *_flags(place, run), "--steps", "1000000", "--quiet", "--timeout", "300")
    running = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _wait_until(lambda: any(run.glob("cells/*/*/progress.txt")) or running.poll() is not None, _BEGINS_S)
    if running.poll() is not None:
        raise DpscopeError(f"{name}: the run ended by itself, with status {running.returncode}")
    return running


def _ended(running: "subprocess.Popen[bytes]") -> int | None:
    try:
        return running.wait(timeout=2 * _ENDS_S)
    except subprocess.TimeoutExpired:
        running.kill()
        return None


def _wait_until(holds: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not (done := holds()) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return done


def _none_left(name: str) -> CheckVerdict:
    """Whether this process is the only one left of the check."""
    token = f"{TOKEN_VARIABLE}={os.environ.get(TOKEN_VARIABLE, '')}"
    _wait_until(lambda: not processes_with(token), _ENDS_S)
    return equals(name, len(processes_with(token)), 0)


def resume(place: Workplace) -> list[CheckVerdict]:
    """A training that Ctrl-C interrupted goes on to the same losses as one that ran straight through."""
    straight, broken = place.folder / "straight", place.folder / "broken"
    model = ("--model", "dpscope.launch.acceptance.models:deterministic")
    flags = (
        "train",
        "--device",
        place.kind,
        *_TRAINING,
        *model,
        "--epochs",
        "3",
        "--warmup-epochs",
        "0",
        "--milestones",
        "2",
    )
    variables = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}  # else cuBLAS gives other bits
    first = place.dpscope(*flags, "--out", straight, variables=variables)
    if first.returncode:
        return [equals("l.train", f"status_{first.returncode}", "status_0", last_line(first.stderr))]
    command = place.command(*flags, "--checkpoint-steps", "5", "--out", broken)
    running = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_until(lambda: any(broken.glob("training/*/*/checkpoints/last.pt")) or running.poll() is not None, _BEGINS_S)
    running.send_signal(signal.SIGINT)
    status = _ended(running)
    again = place.dpscope(*flags, "--checkpoint-steps", "5", "--out", broken, variables=variables)
    return [
        equals("l.interrupted", f"status_{status}", "status_130"),
        equals("l.resumed", f"status_{again.returncode}", "status_0", last_line(again.stderr)),
        equals("l.losses", "equal" if losses(place, broken) == losses(place, straight) else "different", "equal"),
    ]


def losses(place: Workplace, run: Path) -> Any:
    """The losses of a training's epochs as they are stored: every bit of them."""
    found = [
        [{name: value for name, value in epoch.items() if "loss" in name} for epoch in read_json(path, list)]
        for path in sorted(run.glob("training/*/*/epochs.json"))
    ]
    if not any(any(epochs) for epochs in found):
        raise DpscopeError(f"{run} holds no losses")
    return found
