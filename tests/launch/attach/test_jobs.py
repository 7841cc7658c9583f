"""The jobs of `dpscope attach`: commands, environments, working folders, and records of failed
ones.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from dpscope.analysis.runs.run_data import load_run
from dpscope.launch.attach import jobs
from dpscope.launch.attach.arguments import attachment
from dpscope.launch.attach.jobs import (
    AttachedJob,
    JobEnd,
    check_counts,
    default_counts,
    lacks_baseline,
    plan_jobs,
    record_jobs,
    run_job,
)
from dpscope.launch.commands.attach import parse_jobs
from dpscope.launch.contents import app
from dpscope.launch.jobs.devices import Devices
from dpscope.launch.jobs.stop_request import StoppedError
from dpscope.profiling.attached.settings import print_note
from dpscope.profiling.machine.cores import usable_cores
from dpscope.profiling.records.run import Cell, CellResult, PlannedCell
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.attached_scripts import train_attached
from tests.helpers.nccl_logs import all_reduce
from tests.helpers.nccl_logs import nccl_log as nccl_log_text
from tests.helpers.paths import USER_MODELS
from tests.helpers.ranks import free_port
from tests.helpers.words import words

SCRIPTS = USER_MODELS / "scripts"
WINDOWS = words("--warmup 5 --steps 8 --traced-steps 1")


def test_single_stands_for_one_device_without_torchrun() -> None:
    assert (parse_jobs("2,single,1"), parse_jobs("single,single,2,2")) == ((None, 1, 2), (None, 2))
    for text in ("", "single,two", "single,"):
        with pytest.raises(ValueError, match="whole number"):
            parse_jobs(text)


def test_device_counts_beyond_the_machine_are_refused() -> None:
    cores = usable_cores()
    check_counts((1, cores), gpus(None))
    with pytest.raises(
        DpscopeError, match=f"--devices {cores + 1}: this machine has no GPU and {cores} cores"
    ):
        check_counts((1, cores + 1), gpus(None))
    with pytest.raises(DpscopeError, match=r"--devices 4: this machine has 2 GPUs"):
        check_counts((4,), gpus(2))
    with pytest.raises(DpscopeError, match="--devices 0"):
        check_counts((0, 1), gpus(2))
    assert default_counts(gpus(6)) == (1, 2, 4, 6)


def gpus(count: int | None) -> Devices:
    return Devices(kind="cpu" if count is None else "cuda", count=count)


def test_a_single_device_is_plain_python_with_the_threads_of_the_other_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(
        counts: tuple[int | None, ...], found: int | None = 2, repeats: int = 1
    ) -> list[AttachedJob]:
        return plan_jobs(
            counts,
            repeats,
            tmp_path,
            ["--warmup", "5"],
            ["-m", "json.tool", "--lr", "1"],
            gpus(found),
        )

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    jobs = planned((None, 2), repeats=2)
    assert [job.label for job in jobs] == ["one device without torchrun", "2 devices"] * 2
    single, two = jobs[:2]
    assert single.command[1:3] == ("-m", "dpscope.launch.attach")
    assert two.command[2:5] == ("dpscope.launch.torchrun", "--nnodes=1", "--nproc-per-node=2")
    for command in (single.command, two.command):  # it works by hand
        read = attachment(command[command.index("dpscope.launch.attach") + 1 :])
        assert (read.command, read.settings.warmup_steps) == (("-m", "json.tool", "--lr", "1"), 5)
    assert [job.environment["OMP_NUM_THREADS"] for job in (single, two)] == ["1", "1"]
    assert single.environment["CUDA_VISIBLE_DEVICES"] == "3"  # frameworks use all that they see
    assert two.environment["CUDA_VISIBLE_DEVICES"] == "3,5"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert planned((None,))[0].environment["CUDA_VISIBLE_DEVICES"] == "0"
    on_cpu = planned((None,), found=None)[0].environment
    assert not {"CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"} & on_cpu.keys()
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert planned((None, 2))[1].environment["OMP_NUM_THREADS"] == "3"


def test_each_job_may_have_a_working_folder(tmp_path: Path) -> None:
    (tmp_path / "work" / "d2-0").mkdir(parents=True)  # of an earlier command
    jobs = plan_jobs((None, 2), 2, Path("run"), [], ["train.py"], gpus(None), tmp_path / "work")
    folders = [Path(job.command[job.command.index("--work-folder") + 1]) for job in jobs]
    assert [folder.name for folder in folders] == ["single-0", "d2-1", "single-1", "d2-2"]
    assert all(folder.is_dir() and not any(folder.iterdir()) for folder in folders)
    (tmp_path / "file").touch()
    with pytest.raises(DpscopeError, match=r"--work-folders .*file: cannot make single-0 there"):
        plan_jobs((None,), 1, Path("run"), [], ["train.py"], gpus(None), tmp_path / "file")


def test_a_job_that_was_not_measured_is_a_finding_until_it_is(tmp_path: Path) -> None:
    train_attached(tmp_path)
    one, two = (AttachedJob(count, (), {}) for count in (None, 2))
    message = "2 devices: the script ended with status 3 and was not measured; see its output for the reason"
    for measured, failed, messages in (
        (one, two, [message]),
        (one, None, [message]),
        (two, None, []),
    ):
        ends = [JobEnd(measured, 0, True)]
        record_jobs(tmp_path, [*ends, *([JobEnd(failed, 3, False)] if failed else [])])
        findings = RunFolder(tmp_path).manifest().findings
        assert [one.message for one in findings if one.code == "job_not_measured"] == messages


def pretend_measured(out: Path, *cells: Cell) -> None:
    """A run folder of a script with these cells measured."""
    run = RunFolder(out)
    if not run.manifest_path.exists():
        notes: list[str] = []
        train_attached(out, notes)  # for its manifest
        assert run.manifest_path.exists(), notes
        shutil.rmtree(out / "cells")
        write_json(run.manifest_path, msgspec.structs.replace(run.manifest(), plan=()))
    plan = (*run.manifest().plan, *(PlannedCell(cell=cell) for cell in cells))
    write_json(run.manifest_path, msgspec.structs.replace(run.manifest(), plan=plan))
    for cell in cells:
        repeat = run.repeat(cell, 0)
        repeat.path.mkdir(parents=True)
        write_json(repeat.result_path, CellResult(cell=cell, repeat=0, status="ok", duration_s=1.0))


ALONE, WRAPPED, TWO = Cell("single", 1, 8), Cell("ddp", 1, 8), Cell("ddp", 2, 8)


def test_one_device_without_torchrun_is_lacking_where_torchrun_alone_measured_it(
    tmp_path: Path,
) -> None:
    """A script that wraps its model in DDP under torchrun; `1,2` asks for an efficiency, which
    needs one device without it.
    """
    for name, cells in {
        "wrapped": (WRAPPED, TWO),
        "alone": (ALONE, TWO),
        "one": (WRAPPED,),
    }.items():
        pretend_measured(tmp_path / name, *cells)
    assert lacks_baseline(tmp_path / "wrapped", (1, 2))
    assert not lacks_baseline(tmp_path / "wrapped", (2,))  # nothing was asked about one device
    assert not lacks_baseline(
        tmp_path / "alone", (1, 2)
    )  # the script wraps nothing in one process, or it was there before
    assert not lacks_baseline(tmp_path / "one", (1, 2))
    assert not lacks_baseline(tmp_path / "none", (1, 2))


@pytest.mark.parametrize("status", [0, 1])
def test_the_baseline_is_run_last_and_its_failure_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The README's `--devices 1,2`: the third job has no torchrun, and the threads of the
    others.
    """
    out, jobs_run = tmp_path / "run", []

    def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
        of_torchrun = next((word for word in command if word.startswith("--nproc-per-node=")), None)
        jobs_run.append((of_torchrun, environment["OMP_NUM_THREADS"]))
        cell = {"--nproc-per-node=1": WRAPPED, "--nproc-per-node=2": TWO, None: ALONE}[of_torchrun]
        if of_torchrun or not status:
            pretend_measured(out, cell)
            return 0
        return status

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(jobs, "run_job", run)
    monkeypatch.setattr("dpscope.analysis.output.run_screen.show_run", lambda *shown: True)
    (tmp_path / "train.py").touch()
    script = str(tmp_path / "train.py")
    ended = CliRunner().invoke(
        app, ["attach", "--devices", "1,2", "--out", str(out), "--", script], catch_exceptions=False
    )
    assert jobs_run == [("--nproc-per-node=1", "1"), ("--nproc-per-node=2", "1"), (None, "1")]
    assert (
        "The script runs once more on one device, without torchrun: the baseline of efficiency."
        in ended.stdout
    )
    assert ("It was not measured without torchrun" in ended.stdout) == bool(status)
    assert ended.exit_code == 0
    assert "[2/2] 2 devices: started\n[2/2] 2 devices: measured, ended" in ended.stdout
    unmeasured = [
        one for one in RunFolder(out).manifest().findings if one.code == "job_not_measured"
    ]
    assert [one.message for one in unmeasured] == [
        "one device without torchrun: the script ended with status 1 and was not measured; see its output for the reason"
    ] * status
    assert all(
        "no init_process_group where WORLD_SIZE is not set" in one.next_step for one in unmeasured
    )


@pytest.mark.process
def test_the_status_of_a_job_is_its_commands(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_job(["sh", "-c", "echo $GREETING; exit 7"], {**os.environ, "GREETING": "hello"}) == 7
    assert capfd.readouterr().out == "hello\n"
    assert run_job(["sh", "-c", "kill -TERM $$"], os.environ) == 128 + 15


def attach(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "dpscope.launch.attach", "--out", "run", *arguments]
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    return subprocess.run(
        command, cwd=folder, env=kept, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.mark.process
def test_a_script_that_resumes_is_measured_in_separate_folders(tmp_path: Path) -> None:
    script = str(SCRIPTS / "resuming.py")
    assert attach(tmp_path, *WINDOWS, script).stderr == ""
    again = attach(tmp_path, *WINDOWS, script)  # 15 steps, two after the trace
    assert again.stdout == "trained 15 steps\n"
    assert again.stderr == (
        "dpscope: the script ended: 4 of 8 steps were timed, 1 traced; what was measured is saved\n"
    )
    for name in ("first", "second"):
        own = attach(tmp_path, *WINDOWS, "--work-folder", name, script)
        assert (own.stdout, own.stderr) == ("trained 30 steps\n", "")
        assert (tmp_path / name / "checkpoint.pt").exists()
    (data,) = load_run(tmp_path / "run").measured
    assert [rank.blocks[0].steps for _, rank in data.ranks] == [8, 4, 8, 8]


@pytest.mark.process
def test_a_script_may_replace_its_process(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""
import os, sys
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    try:
        os.execv("/no/such/program", ["program"])
    except OSError:
        print("still here", flush=True)
    os.execvp(sys.executable, [sys.executable, *sys.argv])
print("trained")
""")
    ended = attach(tmp_path, *WINDOWS, "train.py")
    assert (ended.returncode, ended.stdout) == (0, "still here\ntrained\n")
    assert ended.stderr == ""
    assert list((tmp_path / "run").glob("cells/*")) == []


@pytest.mark.process
def test_a_script_that_starts_its_other_process_itself_is_refused(tmp_path: Path) -> None:
    script = str(SCRIPTS / "own_launcher.py")
    ended = attach(tmp_path, *WINDOWS, script, str(free_port()))
    assert (ended.returncode, ended.stdout) == (1, "trained\n")
    assert (
        "dpscope: nothing is measured: 1 of 2 processes run without dpscope, as the script or its framework started them itself; "
        "let torchrun start all of them: dpscope attach --devices 2 -- "
    ) in ended.stderr  # gloo may warn before it
    assert not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_arrives_as_a_job_starts_ends_it(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    def with_signal(parent: int, command: Sequence[str]) -> list[str]:
        os.kill(parent, number)
        return list(command)

    monkeypatch.setattr(jobs, "dying_with_process", with_signal)
    before = signal.getsignal(number)
    with pytest.raises(StoppedError) as stopped:
        run_job(["sleep", "60"], os.environ)
    assert stopped.value.exit_status == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.process
def test_nccls_log_of_the_job_is_in_the_report(tmp_path: Path) -> None:
    """A log that appears while the script runs, as NCCL_DEBUG_FILE's does."""
    log, out = tmp_path / "nccl.log", tmp_path / "run"
    script = tmp_path / "train.py"
    written = nccl_log_text(2, all_reduce(32, "TREE", "LL"))
    script.write_text(f"""
import os
import torch
from pathlib import Path
from torch import distributed, nn
distributed.init_process_group("gloo")
Path({str(log)!r}).write_text({written!r})
model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(40):
    model(torch.ones(8, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
distributed.barrier()
os._exit(0)  # ending gloo's threads one by one makes torch abort now and then
""")
    command = [
        sys.executable,
        *words("-m dpscope.launch.cli attach --devices 2 --out"),
        str(out),
        *WINDOWS,
    ]
    ended = subprocess.run(
        [*command, "--nccl-log", str(log), "--", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = (out / "report" / "comparison.md").read_text()
    assert "| all_reduce | 2 | 32 B | tree | ll |" in report
    assert "on 2 ranks the ring formula describes 0 B of 32 B" in report


def test_the_last_line_repeats_why_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would else stand above torchrun's report of the failure."""

    def run(command: Sequence[str], environment: Mapping[str, str]) -> int:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        print_note("an earlier note")
        print_note("the script raised KeyError")
        monkeypatch.setenv("LOCAL_RANK", "1")
        print_note("of another process")
        return 1

    monkeypatch.setattr(jobs, "run_job", run)
    script = tmp_path / "train.py"
    script.touch()
    arguments = ["attach", "--devices", "1", "--out", str(tmp_path / "run"), "--", str(script)]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 1
    assert ended.stderr.splitlines()[-1].endswith("run: the script raised KeyError")
    # the folder for notes is gone with the command; a script that outlives it goes on
    monkeypatch.setenv("LOCAL_RANK", "0")
    print_note("a later note")
