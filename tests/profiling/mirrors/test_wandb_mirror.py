"""The wandb mirror with the real package: offline runs, no connections; and measured cells with a
recording double.
"""

import importlib
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dpscope.analysis.output.run_json import cell_summaries
from dpscope.analysis.report.build import make_report
from dpscope.profiling.mirrors.wandb_mirror import CellMirror, wandb_mode
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.examples import loaded
from tests.helpers.paths import ROOT

SCRIPT = """
import sys
from pathlib import Path
from dpscope.profiling.store.folders import DpscopeError
from dpscope.profiling.mirrors.wandb_mirror import wandb_mirror
from tests.helpers.trainings import record
try:
    mirror = wandb_mirror(Path(sys.argv[1]), None, online=sys.argv[2] == "online")
except DpscopeError as error:
    sys.exit(f"refused: {error}")
first = [record(epoch=1, test_accuracy=60.0), record(epoch=2, test_accuracy=70.0)]
mirror.write(first[:1])
mirror.write(first)
mirror.write([record("single-d1-b32", epoch=1, test_accuracy=50.0)])
mirror.close()
"""


def mirrored(folder: Path, mode: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Three epochs of two trainings mirrored by a separate process, in an environment without other
    wandb settings.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("WANDB")
    }
    environment |= {"HOME": str(folder / "home"), "NO_PROXY": "", "no_proxy": "", **variables}
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), mode],
        env=environment, capture_output=True, text=True, timeout=120, cwd=ROOT,
    )  # fmt: skip


@contextmanager
def counting_server() -> Iterator[tuple[str, list[str]]]:
    """A server that only records connections; yields its address and the list of connections."""
    connections: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connection, peer = server.accept()
                except OSError:  # closed: the test is over
                    return
                connections.append(str(peer))
                connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", connections
        server.shutdown(socket.SHUT_RDWR)


def history(file: Path) -> list[dict[str, str]]:
    """The history of a .wandb file: LevelDB's log format (blocks of 32 KiB) with one wandb Record
    per entry.
    """
    record_type = importlib.import_module("wandb.proto.wandb_internal_pb2").Record
    content = file.read_bytes()
    place, part, found = 7, b"", []  # after wandb's own header
    while place + 7 <= len(content):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            entry = record_type.FromString(part)
            part = b""
            if entry.WhichOneof("record_type") == "history":
                found.append(
                    {
                        "/".join(item.nested_key) or item.key: item.value_json
                        for item in entry.history.item
                    }
                )
    return found


@pytest.mark.process
def test_offline_runs_hold_every_epoch_once(tmp_path: Path) -> None:
    """Mirrored twice, as after an interrupted and resumed training: the second run replaces the
    first.
    """
    for _ in range(2):
        ended = mirrored(tmp_path, "offline")
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout == ended.stderr == ""
    files = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    single, ddp = sorted((history(file) for file in files), key=len)
    assert [float(epoch["accuracy_percent/test"]) for epoch in ddp] == [60.0, 70.0]
    assert [int(epoch["_step"]) for epoch in ddp] == [1, 2]
    assert [float(epoch["accuracy_percent/test"]) for epoch in single] == [50.0]


@pytest.mark.process
def test_nothing_leaves_the_machine_unless_requested(tmp_path: Path) -> None:
    """All of wandb's proxies and URLs lead to a recording server; wandb's error reporting shows
    that it would notice them.
    """
    with counting_server() as (address, connections):
        proxies = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY")
        ways_out = {"WANDB_BASE_URL": address, **dict.fromkeys(proxies, address)}
        assert mirrored(tmp_path / "quiet", "offline", **ways_out).returncode == 0
        assert connections == []
        assert (
            mirrored(
                tmp_path / "reporting", "offline", **ways_out, WANDB_ERROR_REPORTING="true"
            ).returncode
            == 0
        )
        assert connections


@pytest.mark.process
def test_an_online_run_without_a_key_is_refused_in_one_line(tmp_path: Path) -> None:
    with counting_server() as (address, _):
        ended = mirrored(tmp_path, "online", WANDB_BASE_URL=address)
    assert ended.returncode == 1
    (refusal,) = (line for line in ended.stderr.splitlines() if line.startswith("refused: "))
    assert "wandb login" in refusal


def test_the_mode_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    assert wandb_mode(online=False) == "offline"
    assert wandb_mode(online=True) == "online"
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert wandb_mode(online=False) == "disabled"
    monkeypatch.setenv("WANDB_MODE", "sometimes")
    with pytest.raises(DpscopeError, match="WANDB_MODE=sometimes"):
        wandb_mode(online=False)


@pytest.mark.process
def test_train_refuses_before_anything_begins(tmp_path: Path) -> None:
    """The command without the package: one line, status 2, no run folder."""
    code = "import sys; sys.modules['wandb'] = None; from dpscope.launch.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        code,
        "train",
        "--wandb",
        "--data",
        "fake",
        "--out",
        str(tmp_path / "run"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, len(ended.stderr.splitlines())) == (2, 1)
    assert "pip install 'dpscope[wandb]'" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_every_cell_is_a_run_with_the_numbers_of_its_row(tmp_path: Path) -> None:
    made: dict[str, dict[str, Any]] = {}
    runs: dict[str, Mock] = {}

    def init(name: str, **arguments: Any) -> Mock:
        made[name], runs[name] = arguments, Mock()
        return runs[name]

    double = SimpleNamespace(init=init, Settings=dict, Table=dict)
    report = make_report(loaded())
    CellMirror(double, "offline").write(tmp_path, cell_summaries(report))
    assert list(made) == [data.cell.name for data in report.run.measured]
    assert len({one["id"] for one in made.values()}) == len(runs) > 1
    assert {(one["mode"], one["dir"]) for one in made.values()} == {("offline", str(tmp_path))}
    for run in runs.values():
        run.finish.assert_called_once_with()
    name, row = "ddp-d2-b8", report.comparison.table.set_index("cell").loc["ddp-d2-b8"]
    assert (made[name]["config"]["strategy"], made[name]["config"]["devices"]) == ("ddp", 2)
    summary = runs[name].summary.update.call_args.args[0]
    assert summary["step_us"] == row["step_us"]
    assert "ring_us" not in summary  # unknown: omitted, not 0
    assert ["step_us", row["step_us"]] in runs[name].log.call_args.args[0]["summary"]["data"]
