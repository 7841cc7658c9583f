"""The entry point: versions; mistakes, damaged traces, a full disk, long names, a closed output:
one line, exit status 2.
"""

import importlib.metadata
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.analysis.figures import draw
from dpscope.analysis.report.build import make_report, write_report
from dpscope.analysis.runs.run_data import load_run
from dpscope.launch import cli, contents
from dpscope.profiling.store.errors import FAULT
from tests.helpers.paths import DATA, EXAMPLE_RUN, ROOT, USER_MODELS

TRACES = EXAMPLE_RUN / "cells/ddp-d2-b8/repeat0/traces"
TIMES = ROOT / "examples/published/epoch_times.csv"
LONG = "n" * 300
ANALYZE = [sys.executable, "-m", "dpscope.launch.cli", "analyze", "--format", "json"]


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The exit status of dpscope with these arguments."""
    monkeypatch.setattr(sys, "argv", ["dpscope", *map(str, arguments)])
    # it starts processes
    monkeypatch.setattr("dpscope.launch.commands.bundle._machine_notes", dict)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def error_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str | Path
) -> str:
    status, message = called(monkeypatch, *arguments), capsys.readouterr().err
    assert (status, message.count("\n")) == (2, 1), message
    assert message.startswith("dpscope: ")
    return message


def test_a_fault_of_dpscope_is_no_result_of_a_gate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def faulty(*paths: Path) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("dpscope.analysis.output.changes.print_comparison", faulty)
    status = called(monkeypatch, "compare", EXAMPLE_RUN, "another")
    *trace, last = capsys.readouterr().err.splitlines()
    assert status == FAULT == 70
    assert trace[0].startswith("Traceback")
    assert trace[-1] == "ZeroDivisionError: planted"
    assert "please report the lines above" in last


@pytest.mark.long
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", EXAMPLE_RUN, "--format", "json"],
        ["analyze", TRACES],
        ["estimate", TIMES],
        ["--version"],
    ],
)
def test_a_full_disk_under_the_output_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str | Path],
) -> None:
    monkeypatch.chdir(tmp_path)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        message = error_line(monkeypatch, capsys, *arguments)
    assert (
        message
        == "dpscope: cannot write: No space left on device; make room there, or choose another place\n"
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments",
    [
        ["analyze", TRACES, "--report", LONG],
        ["merge", TRACES, "-o", f"{LONG}.json"],
        ["run", "--out", LONG],
        ["attach", "--out", LONG, "--", __file__],
        ["estimate", LONG],
    ],
)
def test_a_name_that_is_too_long_is_one_line_that_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str | Path],
) -> None:
    monkeypatch.chdir(tmp_path)
    message = error_line(monkeypatch, capsys, *arguments)
    assert LONG[:200] in message
    assert "File name too long" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_a_disk_that_fills_leaves_no_half_written_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third file cannot be written: the report that stood there stays whole, and a new one has
    no file.
    """
    monkeypatch.setattr(draw, "RUN_FIGURES", draw.RUN_FIGURES[:1])  # all take seconds
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run", ignore=shutil.ignore_patterns("report"))
    report = make_report(load_run(tmp_path / "run"))
    page = write_report(report, ("png",))
    before = {path: path.stat().st_mtime_ns for path in page.parent.rglob("*")}
    written: list[Path] = []
    write = Path.write_bytes

    def fill(path: Path, content: bytes) -> int:
        written.append(path)
        if len(written) % 3 == 0:
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", fill)
    for folder in (page.parent, tmp_path / "other"):
        with pytest.raises(OSError, match="No space left"):
            write_report(report, ("png",), folder=folder)
    assert {path: path.stat().st_mtime_ns for path in page.parent.rglob("*")} == before
    assert not [path for path in (tmp_path / "other").rglob("*") if path.is_file()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("run --model resnet1", "--model resnet1"),
        ("run --config no_such.toml", "no_such.toml"),
        ("run --data cifar10 --data-dir nowhere", "nowhere"),
        ("analyze no_such_folder", "no_such_folder"),
        ("analyze .", "no trace"),
        ("analyze TABLE", "is a table, not a trace: give a table of times to dpscope estimate"),
        ("whatif TABLE --devices 4", "a table of times to dpscope estimate"),
        ("compare RUN TABLE", "a table of times to dpscope estimate"),
        ("estimate RUN", "a run folder is for dpscope analyze"),
        ("estimate", "TABLE is missing: CSV of epoch times"),
        ("--foo", "--foo: dpscope has no such option before a command; see dpscope -h"),
        ("foo", "foo: no such command; see dpscope -h"),
        ("run --model lenet5", "such as lenet:lenet5 in the folder examples"),
        ("train --data mnist", "--data mnist: choose from digits, cifar10, fake"),
        ("analyse RUN", "analyse: no such command; did you mean analyze?"),
        (
            "analyze RUN --fromat csv",
            "--fromat: dpscope analyze has no such option; did you mean --format?",
        ),
        ("equal --amp", "--amp: dpscope equal has no such option; see dpscope equal -h"),
        ("analyze RUN --format xml", "--format xml: choose from table, json"),
        ("analyze RUN --format=xlm", "--format xlm: choose from table, json"),
        (
            "analyze RUN --target-efficiency 80",
            "--target-efficiency 80 is not a share: write it as 80%",
        ),
        ("whatif RUN --base-devices 0", "--base-devices 0: give a whole number of 1 or more"),
        (
            "analyze RUN --target-efficiency 180",
            "--target-efficiency 180: give a share above 0% and at most 100%, such as 80%",
        ),
        ("run extra", "extra: dpscope run takes no such argument; see dpscope run -h"),
        ("merge RUN", "--output is missing: the merged trace"),
        ("compare RUN RUN --fail-over", "--fail-over needs a value"),
        (
            "run --devices 3x",
            "--devices 3x: 3x is neither a number of devices nor a layout such as 2x4",
        ),
        ("compare RUN ''", "an argument is empty"),
        ("compare RUN RUN/cells/..", "is named twice: a run does not differ from itself"),
        (
            "run --model tiny_models.py:tiny",
            "--model tiny_models.py:tiny: write it as package.module:function",
        ),
        ("analyze tiny_models.py", "tiny_models.py"),
        ("analyze tiny_models.py --max-bytes 0", "--max-bytes 0"),
        ("run --link-gbps 25", "--link 25GB/s (bytes) or --link 200Gb/s (bits)"),
        ("tensorboard nowhere --link-gbps=25", "--link-gbps: it is --link now"),
        (
            "train --model tiny_models:tiny",
            "--model tiny_models:tiny: it distinguishes 4 classes and digits has 10",
        ),
        ("train --data cifar10 --data-dir nowhere", "cifar-10-batches-py does not exist"),
        (
            "train --model resnet8_cifr",
            "--model resnet8_cifr: no such model; did you mean resnet8_cifar",
        ),
        ("bundle RUN -o b.tar", "b.tar does not end in .zip"),
        ("bundle nowhere", "nowhere does not exist"),
        (
            "analyze RUN --flops=1.2X",
            "--flops 1.2X: give the FLOPs of one step on one device, such as",
        ),
        ("whatif none --devices 4", "does not exist; give a run folder, or traces of one job"),
        ("whatif . --devices 4", "holds no trace"),
        ("whatif RUN --link 100", "--link 100 has no unit: write 100GB/s"),
        ("whatif RUN --overlap offf", "--overlap offf: did you mean off? Choose from on, off"),
        ("whatif RUN --overlap maybe", "--overlap maybe: choose from on, off"),
        ("whatif RUN --on-time x", "--on-time x: give a rank, such as 1"),
        # int() refuses so many digits
        (f"whatif RUN --devices {'9' * 5000}", "9: give device counts such as 8,16"),
        ("whatif RUN --bucket-mb -1", "--bucket-mb -1: give a size above 0, such as 25 (MiB)"),
        (
            "whatif RUN --cell ddp-d8-b8",
            "has no measured cell ddp-d8-b8; did you mean ddp-d2-b8? It has",
        ),
        ("whatif RUN --cell single-d1-b8", "cannot be the base"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    message: str,
) -> None:
    monkeypatch.chdir(USER_MODELS)
    places = {"RUN": EXAMPLE_RUN, "TABLE": DATA / "scaling" / "ddp_v100_pytorch_benchmark.csv"}
    words = [
        re.sub("^(RUN|TABLE)", lambda name: str(places[name[0]]), word)
        for word in shlex.split(command)
    ]
    out = ["--out", str(tmp_path / "run")] if words[0] in ("run", "train") else []
    monkeypatch.setattr(sys, "stdout", printed := io.StringIO())
    assert message in error_line(monkeypatch, capsys, *words, *out)
    assert printed.getvalue() == ""  # nothing is answered first
    assert not list(tmp_path.iterdir())


@pytest.mark.process
def test_what_the_encoding_or_the_terminal_lacks_costs_no_output(tmp_path: Path) -> None:
    """The sign of micro, and names of any bytes; a width of 0 stands for one that is not known."""

    def printed(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "dpscope.launch.cli", "analyze", "--verbose", str(folder)]
        given = {**os.environ, "COLUMNS": "0", **environment}
        return subprocess.run(
            command, env=given, capture_output=True, text=True, timeout=60, check=False
        )

    folder = tmp_path / "Läufer"
    shutil.copytree(TRACES, folder)
    (folder / "empty.json").touch()
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for environment, name in (({"PYTHONIOENCODING": "ascii"}, r"L\u00e4ufer"), (plain, "Läufer")):
        shown = printed(folder, **environment)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "[us]" in shown.stdout
        assert f"{name}/empty.json" in "".join(shown.stdout.split())  # which may be folded
    shutil.copytree(TRACES, os.fsdecode(os.fsencode(tmp_path) + b"/L\xe4ufer"))
    refused = subprocess.run(
        [sys.executable, "-m", "dpscope.launch.cli", "reduce", b"L\xe4ufer", "-o", "part.dpscope"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert refused.stderr.startswith("dpscope: a name is not UTF-8: L\\udce4ufer/")
    assert refused.stderr.count("\n") == 1


@pytest.mark.process
def test_a_truncated_trace_is_read_as_far_as_it_goes_and_is_one_line(tmp_path: Path) -> None:
    cut = tmp_path / "rank0.json.gz"
    cut.write_bytes((DATA / "v100x8_ddp_dlrm" / "rank0.json.gz").read_bytes()[:40_000])
    ended = subprocess.run([*ANALYZE, str(cut)], capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert str(cut) in line
    findings = json.loads(ended.stdout)["findings"]
    assert {"trace_cut_short"} <= {finding["code"] for finding in findings}


@pytest.mark.process
@pytest.mark.parametrize("redirected", [">&-", "> /dev/full", "2>&- >&-"])
def test_whole_processes_with_outputs_that_are_closed_or_full(
    tmp_path: Path, redirected: str
) -> None:
    command = [*ANALYZE, str(EXAMPLE_RUN), redirected]
    ended = subprocess.run(
        ["sh", "-c", " ".join(command)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == (2 if "full" in redirected else 0), ended.stderr
    assert ended.stderr.count("\n") == ("full" in redirected)


@pytest.mark.process
# a text at once, and what rich prints
@pytest.mark.parametrize("options", [["--format", "json"], []])
def test_a_pipe_whose_reader_leaves_ends_quietly(options: list[str]) -> None:
    """Not with status 1, which `compare` has for a regression."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [*ANALYZE[:4], *options, str(TRACES)]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, "")


def test_versions_where_a_package_has_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    # no records of distributions
    monkeypatch.setattr(contents, "Path", lambda folder: Path("/nowhere"))
    import typer

    assert contents._installed_version("typer") == typer.__version__
    assert contents._installed_version("no_such_package") == "not installed"


def test_what_may_not_be_read_is_not_called_unwritable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    trace.touch()

    def denied_line(readable: bool) -> str:
        monkeypatch.setattr("os.access", lambda *_: readable)  # a superuser may read everything
        return error_line(monkeypatch, capsys)

    def denied() -> None:
        raise PermissionError(13, "Permission denied", str(trace))

    monkeypatch.setattr(contents, "app", denied)
    unreadable = f"dpscope: cannot read {trace}: Permission denied; change its permissions, or name another\n"
    assert denied_line(readable=False) == unreadable
    assert (
        denied_line(readable=True)
        == f"dpscope: cannot write {trace}: Permission denied; choose another folder\n"
    )
    trace.unlink()
    assert denied_line(readable=False).startswith(f"dpscope: cannot write {trace}")


@pytest.mark.long
@pytest.mark.parametrize(
    "line",
    [
        "analyze run --report",
        "merge run -o .json",
        "bundle run -o .zip",
        "reduce TRACES -o .dpscope",
    ],
)
def test_square_brackets_of_a_name_are_printed_and_are_no_markup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    shutil.copytree(EXAMPLE_RUN, tmp_path / "run")
    *words, last = line.replace("TRACES", "run/cells/ddp-d2-b8/repeat0/traces").split()
    name = f"[bold]x{last if last.startswith('.') else ''}"
    called(monkeypatch, *words, *([] if last.startswith(".") else [last]), name)
    assert (name if last.startswith(".") else f"{name}/report.html") in capsys.readouterr().out
