"""torchrun whose store listens at one address: where it listens, and what it refuses."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dpscope.launch.torchrun import _OneAddress
from tests.helpers.ranks import free_port


def is_reached(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


@pytest.mark.parametrize("port", [0, None], ids=["a free port", "a stated port"])
def test_the_store_listens_at_its_address_alone(port: int | None) -> None:
    stated = free_port() if port is None else port
    rendezvous = _OneAddress("127.0.0.2", stated, 0, 1, "job", 10)
    info = rendezvous.next_rendezvous()
    chosen = info.bootstrap_store_info
    assert chosen is not None
    assert (chosen.master_addr, info.rank, info.world_size) == ("127.0.0.2", 0, 1)
    assert stated in (0, chosen.master_port)
    assert is_reached("127.0.0.2", chosen.master_port)
    assert not is_reached("127.0.0.1", chosen.master_port)
    again = rendezvous.next_rendezvous().bootstrap_store_info  # after a restart of the processes
    assert again is not None
    assert again.master_port == chosen.master_port


@pytest.mark.process
@pytest.mark.long
def test_options_of_another_rendezvous_are_refused() -> None:
    command = [
        sys.executable,
        "-m",
        "dpscope.launch.torchrun",
        "--standalone",
        "--nproc-per-node=1",
        "train.py",
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 2
    assert "omit --standalone and --rdzv-..." in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.process
@pytest.mark.long
def test_a_rank_that_fails_is_named_without_torchrun_s_traceback(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise ValueError('of the script')\n")
    command = [sys.executable, "-m", "dpscope.launch.torchrun", "--nproc-per-node=1", str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback (most recent call last)") == 1
    assert "ValueError: of the script" in ended.stderr
    assert "rank      : 0 (local_rank: 0)" in ended.stderr
    assert "torch/distributed/run.py" not in ended.stderr
