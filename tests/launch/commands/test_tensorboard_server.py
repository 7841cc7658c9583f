"""TensorBoard's address is checked before anything starts; the plugin's processes that have ended are waited for."""

import multiprocessing
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorboard.program

from dpscope.launch import cli
from dpscope.launch.commands import tensorboard_server
from dpscope.launch.commands.tensorboard_server import check_address, serve
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN


@pytest.mark.parametrize(
    ("host", "port", "said"), [("localhost", 99999, "--port 99999"), ("localhost", -1, "--port -1")]
)
def test_an_address_that_cannot_be_is_refused_before_the_folder_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    host: str,
    port: int,
    said: str,
) -> None:
    command = ["dpscope", "tensorboard", str(EXAMPLE_RUN / "cells"), "--host", host, "--port", str(port)]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"dpscope: {said}: a port is a number from 0 to 65535; 0 takes a free one\n"


def test_a_taken_port_and_an_unknown_host_are_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            DpscopeError, match=f"--port {port}: TensorBoard cannot listen there on 127.0.0.1: Address already"
        ):
            check_address("127.0.0.1", port)
    check_address("127.0.0.1", 0)
    with pytest.raises(DpscopeError, match=r"--host no\.such\.host\.invalid: "):
        check_address("no.such.host.invalid", 0)


@pytest.mark.process
def test_processes_that_have_ended_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    class Server:
        def configure(self, argv: list[str]) -> None:
            child = multiprocessing.get_context("spawn").Process(target=time.perf_counter)
            child.start()
            started.append(child)

        def launch(self) -> str:
            return "http://here"

    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) > 100 or not Path(f"/proc/{started[0].pid}").exists():
            raise KeyboardInterrupt
        time.sleep(0.1)

    monkeypatch.setattr(tensorboard.program, "TensorBoard", Server)
    monkeypatch.setattr(tensorboard_server, "time", SimpleNamespace(sleep=wait))
    with pytest.raises(KeyboardInterrupt):
        serve(tmp_path, "localhost", 0, lambda address: None)
    assert not Path(f"/proc/{started[0].pid}").exists()
