"""TensorBoard's address is checked before anything starts; the plugin's processes are waited for,
and outlive no server.
"""

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from dpscope.launch.commands.tensorboard import check_address, tensorboard
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA
from tests.helpers.sweeps import command_of, parent_of, wait_until


def test_a_taken_port_and_an_unknown_host_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        unusable = {port: "TensorBoard cannot listen there on 127.0.0.1: Address already"}
        unusable |= dict.fromkeys(
            (99999, -1), "a port is a number from 0 to 65535; 0 takes a free one$"
        )
        for number, expected in unusable.items():
            with pytest.raises(DpscopeError, match=f"--port {number}: {expected}"):
                check_address("127.0.0.1", number)
    check_address("127.0.0.1", 0)
    with pytest.raises(DpscopeError, match=r"--host no\.such\.host\.invalid: "):
        check_address("no.such.host.invalid", 0)


FIRST_LINE_S = 2.0


def descendants(pid: int) -> set[int]:
    every = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    found = {pid}
    while more := {one for one in every if parent_of(one) in found} - found:
        found |= more
    return found - {pid}


def defunct(process: int) -> bool:
    """Ended and not waited for: it is there and has no command line."""
    return Path(f"/proc/{process}").exists() and command_of(process) == b""


def test_a_mistake_is_refused_before_anything_is_said(tmp_path: Path) -> None:
    (tmp_path / "part.dpscope").touch()
    mistakes = {
        ("nowhere", 0): "nowhere does not exist",
        ("part.dpscope", 0): "is a partial and holds no events",
        ("part.dpscope", -1): "--port -1: ",
    }
    for (name, port), expected in mistakes.items():
        with (
            pytest.raises(DpscopeError, match=expected),
            contextlib.redirect_stdout(io.StringIO()) as shown,
        ):
            tensorboard([tmp_path / name], port=port, link=None, host="127.0.0.1", out=None)
        assert shown.getvalue() == ""


@contextlib.contextmanager
def serving(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A server that has printed its first line."""
    trace = str(DATA / "a100x2_ddp_resnet50_rank0.json.gz")
    command = [
        sys.executable,
        "-u",
        "-m",
        "dpscope.launch.cli",
        "tensorboard",
        trace,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
    ]
    with subprocess.Popen(
        [*command, "--out", str(tmp_path / "shown")], stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "Writing the TensorBoard folder ...\n"
            yield running
        finally:
            running.kill()


def address_of(running: "subprocess.Popen[str]") -> str:
    return next((line for line in running.stdout or () if line.startswith("TensorBoard: ")), "")


def all_gone(processes: Iterable[int]) -> bool:
    return not any(Path(f"/proc/{process}").exists() for process in processes)


@pytest.mark.process
@pytest.mark.timeout(180)
def test_a_real_server_reports_progress_and_leaves_no_process(tmp_path: Path) -> None:
    """The first line comes within 2 s of CPU time; no child is defunct while it serves, and none is
    left after Ctrl-C.
    """
    with serving(tmp_path) as running:
        fields = Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()
        assert (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") <= FIRST_LINE_S
        assert "http://127.0.0.1:" in address_of(running)
        time.sleep(3.0)  # children that ended are waited for once a second
        for child in filter(defunct, descendants(running.pid)):  # one may just have ended
            time.sleep(2.0)
            assert not defunct(child)
        children = descendants(running.pid)
        running.send_signal(signal.SIGINT)
        assert running.wait(timeout=30) == 0
    wait_until(lambda: all_gone(children), timeout_s=10)


@pytest.mark.process
@pytest.mark.timeout(180)
def test_a_killed_server_leaves_no_process(tmp_path: Path) -> None:
    """Killed while the plugin's processes load."""
    with serving(tmp_path) as running:
        assert address_of(running)
        wait_until(
            lambda: any(b"spawn_main" in command_of(one) for one in descendants(running.pid)),
            timeout_s=60,
        )
        children = descendants(running.pid)
    wait_until(lambda: all_gone(children), timeout_s=30)
