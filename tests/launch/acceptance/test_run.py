"""Checks in processes of their own: each told, none hiding another, nothing left, a part within its time."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpscope.launch.acceptance import run as acceptance_run
from dpscope.launch.acceptance.checks import CHECKS, PART_S, AcceptanceCheck
from dpscope.launch.acceptance.run import new_folder, run_acceptance
from dpscope.launch.acceptance.verdict import Acceptance
from dpscope.launch.cli import app
from dpscope.profiling.store.files import read_json


def check(
    name: str, part: int = 1, expected_s: float = 0.0, limit_s: float = 30.0, least_gpus: int = 1
) -> AcceptanceCheck:
    return AcceptanceCheck(name, f"tests.helpers.acceptance_checks:{name}", part, expected_s, limit_s, least_gpus)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Acceptance, Path, float]:
    folder = tmp_path_factory.mktemp("acceptance")
    lines: list[str] = []
    checks = [
        check("fails"), check("crashes"), check("mistaken"), check("hangs", limit_s=2.0), check("leaves"),
        check("several", least_gpus=4), check("long", expected_s=1e6), check("passes", part=2),
    ]  # fmt: skip
    began_s = time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(acceptance_run, "_GONE_S", 0.3)
        told = run_acceptance(checks, folder, None, 3, lines.append, part_s=60.0)
    return lines, told, folder, time.monotonic() - began_s


@pytest.mark.process
def test_every_check_is_told_whatever_the_others_do(ran: tuple[list[str], Acceptance, Path, float]) -> None:
    lines, told, folder, _ = ran
    assert [line.partition(" (")[0] for line in lines] == [
        "FAIL fails.share 50% 2%",
        "FAIL crashes status_7 status_0",
        "FAIL mistaken status_1 status_0",
        "FAIL hangs unfinished 2s",
        "PASS leaves.started True True",
        "FAIL leaves.left_running 1 0",
        "SKIP several - -",
        "SKIP long - -",
        "PASS passes.gpus 3 3",
        "PASS passes.share 0.31% 2%",
    ]
    assert "(far too much)" in lines[0]
    assert "(CUDA driver gone; see " in lines[1]
    assert "(dpscope: nothing was measured; measure it; see " in lines[2]
    assert "(needs 4 GPUs, 3 here)" in lines[6]
    assert "s of part 1 are left, and it takes about 1000000 s)" in lines[7]
    assert [verdict.line for verdict in told.verdicts] == lines
    assert read_json(folder / "acceptance.json", Acceptance) == told
    assert (told.failed, told.complete, told.gpus) == (True, True, 3)


@pytest.mark.process
def test_nothing_of_a_check_is_left_and_a_hanging_one_is_not_waited_for(
    ran: tuple[list[str], Acceptance, Path, float],
) -> None:
    _, _, folder, took_s = ran
    child = int((folder / "leaves" / "child.txt").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"
    assert took_s < 60


def test_a_part_alone_runs_its_own_checks(tmp_path: Path) -> None:
    checks = [check("one", part=1), check("two", part=2)]
    told = [run_acceptance(checks, tmp_path, part, 0, lambda _: None) for part in (1, 2, None)]
    assert [[verdict.name for verdict in one.verdicts] for one in told] == [["one"], ["two"], ["one", "two"]]


def test_what_there_is_is_written_after_every_check(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    def told(line: str) -> None:
        if (path := tmp_path / "acceptance.json").exists():
            seen.append(json.loads(path.read_text()))

    run_acceptance([check("one"), check("two"), check("three")], tmp_path, 1, 0, told)
    assert [(len(one["verdicts"]), one["complete"]) for one in seen] == [(1, False), (2, False)]


def test_two_at_the_same_moment_have_folders_of_their_own(tmp_path: Path) -> None:
    folders = {new_folder(tmp_path) for _ in range(3)}
    assert len(folders) == 3
    assert sorted(tmp_path.iterdir()) == sorted(folders)


def test_without_a_gpu_every_check_is_skipped_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("dpscope.launch.jobs.devices.present_gpus", lambda: None)
    ended = CliRunner().invoke(app, ["doctor", "--acceptance", "--out", str(tmp_path / "new")])
    lines = ended.stdout.splitlines()
    assert ended.exit_code == 0
    assert lines[: len(CHECKS)] == [f"SKIP {one.name} - - (no GPU that torch can use)" for one in CHECKS]
    assert lines[len(CHECKS)].startswith(f"0 PASS, 0 FAIL, {len(CHECKS)} SKIP")


def test_the_checks_of_one_gpu_fit_into_their_part_and_are_all_there() -> None:
    """(a) to (m) on one GPU; what takes two or more comes after."""
    for part in (1, 2):
        assert sum(one.expected_s for one in CHECKS if one.part == part and one.least_gpus == 1) <= PART_S
    assert [one.name[0] for one in CHECKS if one.least_gpus == 1] == list("abcdefghijklm")
    assert all(one.expected_s < one.limit_s for one in CHECKS)


def test_every_check_names_a_function_that_takes_a_workplace() -> None:
    import importlib
    import inspect

    for one in CHECKS:
        module, _, name = one.function.partition(":")
        function = getattr(importlib.import_module(f"dpscope.launch.acceptance.{module}"), name)
        assert list(inspect.signature(function).parameters) == ["place"], one.name
