"""What other hosts reach while dpscope measures on one host: nothing. Skips without root."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.hosts import Host, several_hosts, why_no_hosts
from tests.helpers.paths import ROOT, USER_MODELS
from tests.helpers.ranks import free_port
from tests.helpers.words import words

pytestmark = [pytest.mark.process, pytest.mark.long]

_SCRIPT = str(ROOT / "tests" / "user_models" / "scripts" / "plain_loop.py")
_ATTACH = words("attach --devices 2 --steps 4 --traced-steps 1")


@pytest.fixture(scope="module")
def hosts() -> Iterator[list[Host]]:
    if (why := why_no_hosts()) is not None:
        pytest.skip(why)
    with several_hosts(2) as made:
        yield made


def listening(host: Host) -> set[tuple[str, int]]:
    """Address and port of each listening TCP socket of a host."""
    listed = subprocess.run(
        ["ip", "netns", "exec", host.namespace, "ss", "-Hltn"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ends = (line.split()[3].rpartition(":") for line in listed.splitlines())
    return {(address, int(port)) for address, _, port in ends}


def test_a_command_on_one_host_only_listens_at_loopback(hosts: list[Host], tmp_path: Path) -> None:
    """The processes of a job meet at torchrun's store and connect to each other by gloo: three
    sockets at least.
    """
    log = tmp_path / "log.txt"
    program = [sys.executable, "-m", "dpscope.launch.cli", *_ATTACH]
    command = [*program, "--out", str(tmp_path / "out"), "--", _SCRIPT]
    seen: set[tuple[str, int]] = set()
    most = 0
    with open(log, "w") as file:
        running = hosts[0].start(
            command,
            {"OMP_NUM_THREADS": "1"},
            set_gloo_interface=False,
            cwd=USER_MODELS,
            stdout=file,
            stderr=file,
        )
        while running.poll() is None:
            now = listening(hosts[0])
            most = max(most, len(now))
            seen |= now
            time.sleep(0.05)
    assert running.returncode == 0, log.read_text()
    assert most >= 3
    assert {address for address, _ in seen} == {"127.0.0.1"}


_ATTACK = """
import os, pickle, socket, sys
from datetime import timedelta

class Payload:
    def __reduce__(self):
        return os.system, (f"touch {sys.argv[2]}",)

opened = []
for port in map(int, sys.argv[4:]):
    with socket.socket() as client:
        client.settimeout(1)
        if client.connect_ex((sys.argv[1], port)) == 0:
            opened.append(port)
print(*opened, flush=True)
for port in {*opened} - {int(sys.argv[3])}:
    from torch.distributed import TCPStore
    try:
        store = TCPStore(sys.argv[1], port, None, False, timedelta(seconds=2), False)
        for key in store.list_keys():
            store.set(key, pickle.dumps(Payload()).decode("latin-1"))
    except RuntimeError:
        pass
"""


def test_a_stranger_finds_no_port_and_runs_nothing(hosts: list[Host], tmp_path: Path) -> None:
    """The stranger tries every port at which the host listens during a run, and overwrites every
    key of each store that it reaches with a pickle.

    One port is open at all addresses: the stranger must find it, and it alone.
    """
    out, executed = tmp_path / "out", tmp_path / "executed"
    slow = words("--strategy ddp --devices 2 --steps 100000 --model tiny_models:slow --device cpu")
    run = hosts[0].start(
        [
            sys.executable,
            "-m",
            "dpscope.launch.cli",
            "run",
            *slow,
            "--no-calibrate",
            "--out",
            str(out),
        ],
        {"OMP_NUM_THREADS": "1"},
        set_gloo_interface=False,
        cwd=USER_MODELS,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    port = free_port()
    wait = f"import socket; one = socket.create_server(('', {port})); input()"
    control = hosts[0].start([sys.executable, "-S", "-c", wait], stdin=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 100
        while len(listening(hosts[0])) < 4:  # the control, torchrun's store, two ranks
            assert time.monotonic() < deadline
            assert run.poll() is None
            time.sleep(0.1)
        seen = listening(hosts[0])
        ports = [str(number) for _, number in seen]
        stranger = hosts[1].start(
            [sys.executable, "-c", _ATTACK, hosts[0].address, str(executed), str(port), *ports],
            stdout=subprocess.PIPE,
        )
        found = stranger.communicate(timeout=200)[0]
        time.sleep(1)
        assert run.poll() is None
    finally:
        control.kill()
        control.wait()
        run.terminate()
        run.wait(timeout=60)
    assert {address for address, _ in seen - {("*", port), ("0.0.0.0", port)}} == {"127.0.0.1"}
    assert [int(one) for one in re.findall(r"\d+", found)] == [port]
    assert not executed.exists()
    assert os.listdir(out)
