"""Every check in a process of its own, within its time, whatever the others do. Imports no torch."""

import importlib.metadata
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from dpscope.launch.acceptance.checks import ACCEPTANCE_PARTS, PART_S, AcceptanceCheck, Part
from dpscope.launch.acceptance.one import VERDICTS_NAME
from dpscope.launch.acceptance.verdict import Acceptance, CheckVerdict, skipped
from dpscope.launch.acceptance.workplace import last_line
from dpscope.launch.jobs.devices import DeviceType
from dpscope.launch.jobs.parent_death import dying_with_process
from dpscope.launch.jobs.torchrun import end_processes, processes_with
from dpscope.profiling.store.files import read_json, write_json

TOKEN_VARIABLE = "DPSCOPE_ACCEPTANCE"  # in the environment of everything that a check starts
ANSWERS_NAME = "acceptance.json"
_POLL_S = 0.1
_GONE_S = 5.0  # in which the processes of a check that has ended must be gone

TellVerdict = Callable[[str], None]


def new_folder(out: Path) -> Path:
    """A folder of this acceptance's own in `out`, named by the moment."""
    folder = out / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    number = 2
    while folder.exists():
        folder = folder.with_name(f"{folder.name.partition('_')[0]}_{number}")
        number += 1
    folder.mkdir(parents=True)
    return folder


def run_acceptance(
    checks: Sequence[AcceptanceCheck],
    folder: Path,
    part: Part | None,
    gpus: int,
    told: TellVerdict,
    kind: DeviceType = "cuda",
    part_s: float = PART_S,
) -> Acceptance:
    """Run the checks of a part, or of both; `told` gets a line for every verdict as soon as it stands.

    `folder` holds acceptance.json, written anew after every check, and a folder for each. A check that fails, crashes or
    takes too long hides no other; no process of it is left.
    """
    began_s = time.monotonic()
    created = datetime.now(UTC).isoformat(timespec="seconds")
    verdicts: list[CheckVerdict] = []

    def saved(complete: bool) -> Acceptance:
        state = Acceptance(
            dpscope_version=importlib.metadata.version("dpscope"),
            created_at=created,
            gpus=gpus,
            part=part,
            duration_s=round(time.monotonic() - began_s, 1),
            complete=complete,
            verdicts=tuple(verdicts),
        )
        write_json(folder / ANSWERS_NAME, state)
        return state

    for chosen in (part,) if part is not None else ACCEPTANCE_PARTS:
        ends_s = time.monotonic() + part_s
        for check in (one for one in checks if one.part == chosen):
            left_s = ends_s - time.monotonic()
            reason = check.why_not(gpus, left_s)
            new = (
                [skipped(check.name, reason)] if reason else _run(check, folder, gpus, kind, min(check.limit_s, left_s))
            )
            for verdict in new:
                told(verdict.line)
            verdicts += new
            saved(complete=False)
    return saved(complete=True)


def _run(check: AcceptanceCheck, folder: Path, gpus: int, kind: DeviceType, limit_s: float) -> list[CheckVerdict]:
    """One check to its end, or to its limit; and what it left."""
    own = folder / check.name
    own.mkdir()
    token = uuid.uuid4().hex
    command = [sys.executable, "-m", "dpscope.launch.acceptance.one", check.function, str(own), kind, str(gpus)]
    with open(own / "log.txt", "wb") as log:
        started = subprocess.Popen(
            dying_with_process(os.getpid(), command),
            env={**os.environ, TOKEN_VARIABLE: token},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status: int | None = started.wait(timeout=limit_s)
            left = _left_after(token)
        except subprocess.TimeoutExpired:
            status, left = None, []
        finally:
            end_processes(f"{TOKEN_VARIABLE}={token}", started)
    if status is None:
        return [
            CheckVerdict(
                "FAIL",
                check.name,
                "unfinished",
                f"{limit_s:.0f}s",
                f"it exceeded its time limit; see {own / 'log.txt'}",
            )
        ]
    verdicts = _told_by(check, own, status)
    if left:
        ids = ", ".join(map(str, left))
        verdicts.append(
            CheckVerdict(
                "FAIL",
                f"{check.name}.left_running",
                str(len(left)),
                "0",
                f"processes {ids} were still running and have been ended",
            )
        )
    return verdicts


def _left_after(token: str) -> list[int]:
    deadline = time.monotonic() + _GONE_S
    while (left := processes_with(f"{TOKEN_VARIABLE}={token}")) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return left


def _told_by(check: AcceptanceCheck, own: Path, status: int) -> list[CheckVerdict]:
    """What the check wrote down, or how it ended without."""
    path = own / VERDICTS_NAME
    if status == 0 and path.exists():
        return list(read_json(path, list[CheckVerdict]))
    said = last_line((own / "log.txt").read_text(errors="replace"))
    return [CheckVerdict("FAIL", check.name, f"status_{status}", "status_0", f"{said}; see {own / 'log.txt'}")]
