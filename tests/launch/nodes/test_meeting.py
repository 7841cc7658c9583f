"""Nodes meet over loopback: all join, or one is late, has other options, sees another folder, or
has another node's rank.
"""

import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C

from dpscope.launch.jobs.node_place import Address
from dpscope.launch.nodes import board
from dpscope.launch.nodes.board import Meeting, found_meeting, opened_meeting
from dpscope.profiling.machine.interfaces import free_port
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import write_json
from tests.helpers.environments import environment
from tests.launch.nodes.conftest import OPTIONS, Nodes

STATED = Meeting("n0", {"dpscope": "1"}, None, ("127.0.0.1",), 1, "secret")


def failure(nodes: Nodes, wait_s: float = 20) -> str:
    with pytest.raises(DpscopeError) as caught, nodes.meeting(wait_s=wait_s):
        pass
    nodes.wait()
    return str(caught.value)


def test_nodes_meet_and_end_with_node_0s_status(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "run", count=3)
    nodes.start(2)
    nodes.start(1)
    with nodes.meeting() as team:
        hosts = team.hosts(environment("n0"))
        assert [(one.node, one.hostname, one.interface) for one in hosts[1:]] == [
            (1, "n1", "lo"),
            (2, "n2", "lo"),
        ]
        assert hosts[0].environment is None
        assert hosts[1].environment == environment("n1")
        (file,) = nodes.out.iterdir()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    nodes.wait()
    assert nodes.ended == {1: 7, 2: 7}
    assert list(nodes.out.iterdir()) == []


def test_nodes_meet_by_the_folder_and_ignore_an_earlier_start(nodes: Nodes) -> None:
    nodes.out.mkdir()
    job = "slurm-1-0-0"
    left = msgspec.structs.replace(STATED, job=job, port=free_port())
    write_json(nodes.out / ".tmp-nodes-0", left)
    nodes.start(1, address=None, job=job)
    time.sleep(0.5)
    with nodes.meeting(address=None, job=job) as team:
        assert team.name(1) == "node 1 (n1)"
    nodes.wait()
    assert nodes.ended == {1: 7}


@pytest.mark.long
def test_missing_nodes_are_named(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "run", count=3)
    nodes.start(2)
    message = failure(nodes, wait_s=3)
    assert message.startswith("--nodes 3: node 1 did not join within 3 s; start the command there")
    assert nodes.ended == {2: 2}
    assert f"Node 0: {message}" in nodes.notes  # node 2 prints it too, and is not left waiting


def test_a_folder_that_is_not_shared_is_named(nodes: Nodes, tmp_path: Path) -> None:
    with opened_folder(nodes):
        elsewhere = tmp_path / "elsewhere"
        with pytest.raises(DpscopeError, match=rf"\(no file of it in {elsewhere}\): .* share"):
            found_meeting(nodes.at(1, out=elsewhere, wait_s=0.3))


def test_two_commands_in_one_folder_meet_at_their_ports(nodes: Nodes) -> None:
    """The node of the second one looks before its node 0 is there."""
    first = Nodes(nodes.out)
    with opened_folder(first):
        nodes.start(1)
        time.sleep(0.5)
        with nodes.meeting(wait_s=20) as team:
            assert team.name(1) == "node 1 (n1)"
        nodes.wait()
    assert nodes.ended == {1: 7}


@contextmanager
def opened_folder(nodes: Nodes) -> Iterator[Path]:
    """Node 0's file while it waits for the others."""
    nodes.out.mkdir()
    with opened_meeting(nodes.at(0), on_gpus=False):
        (file,) = nodes.out.iterdir()
        yield file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 3}, "was started with node count 3, node 0 with 2"),
        (
            {"options": {}},
            "with --devices unset, node 0 with 2x1: give the same command, of the same",
        ),
        ({"options": {**OPTIONS, "--seed": "1"}}, "was started with --seed 1, node 0 with unset"),
    ],
)
def test_a_node_that_does_not_fit_ends_all_with_the_reason(
    nodes: Nodes, changes: dict[str, Any], message: str
) -> None:
    nodes.start(1, **changes)
    assert message in failure(nodes)
    assert message in str(nodes.ended[1])


def test_nodes_need_the_same_kind_of_device(nodes: Nodes) -> None:
    nodes.start(1, gpus=2)
    message = "was started with device cuda, node 0 with cpu: give the same command"
    assert message in failure(nodes)


def test_a_meeting_in_the_form_of_another_version_is_not_read(nodes: Nodes) -> None:
    with opened_folder(nodes) as file:
        write_json(file, {"dpscope": "0.1", "count": 2, "options": {}})
        with pytest.raises(DpscopeError, match=r"no file of it .* have the same dpscope"):
            found_meeting(nodes.at(1, wait_s=0.3))


def test_a_duplicate_node_rank_is_an_error_on_the_second_node(nodes: Nodes) -> None:
    nodes.start(1)
    with (
        nodes.meeting(),
        pytest.raises(DpscopeError, match="--node-rank 1: another node was started with it"),
    ):
        found_meeting(nodes.at(1, wait_s=5))
    nodes.wait()
    assert nodes.ended == {1: 7}


@pytest.mark.long
def test_a_node_of_another_job_does_not_take_part(nodes: Nodes) -> None:
    nodes.start(1, job="slurm-8-0-0", wait_s=1.5)
    threading.Timer(2.0, lambda: nodes.start(1, job="slurm-7-0-0")).start()
    early: list[int | str] = []
    with nodes.meeting(job="slurm-7-0-0"):
        early.append(nodes.ended[1])
    nodes.wait()
    assert "did not find node 0 within 1.5 s (no file of it in" in str(early[0])
    assert nodes.ended == {1: 7}


def test_a_free_port_is_chosen_unless_the_user_stated_one(nodes: Nodes) -> None:
    started: dict[str, Any] = {"job": "slurm-7-0-0", "address": Address("127.0.0.1", 0)}
    with socket.create_server(("", nodes.port)):
        threading.Timer(0.5, lambda: nodes.start(1, **started)).start()
        with nodes.meeting(**started) as team:
            assert team.name(1) == "node 1 (n1)"
        stated = f"--rendezvous 127.0.0.1:{nodes.port}: cannot listen on port {nodes.port}"
        with pytest.raises(DpscopeError, match=stated), nodes.meeting(job="slurm-7-0-0"):
            pass


@pytest.mark.parametrize(
    ("stated", "local"),
    [
        ("127.0.0.1", {"0100007F"}),
        ("::1", {"00000000000000000000000001000000"}),
        # as Debian's /etc/hosts has 127.0.1.1 and the host's own name
        ("localhost", {"00000000", "0" * 32}),
    ],
)
def test_the_store_only_listens_at_the_rendezvous_address_and_everywhere_where_a_name_is_loopback(
    nodes: Nodes, stated: str, local: set[str]
) -> None:
    address = Address(stated, nodes.port)
    nodes.start(1, address=address)
    with nodes.meeting(address=address):
        lines = [
            line
            for table in ("tcp", "tcp6")
            for line in Path("/proc/net", table).read_text().splitlines()
        ]
        ends = {line.split()[1] for line in lines if line.split()[3] == "0A"}  # that listen
        listening = {end.partition(":")[0] for end in ends if end.endswith(f":{nodes.port:04X}")}
        assert listening
        assert listening <= local
        assert any("on all addresses" in one for one in nodes.notes) == (stated == "localhost")


@pytest.mark.long
def test_what_is_at_the_addresses_of_a_file_is_named(nodes: Nodes) -> None:
    """Of a killed command, whose port is free, or taken by another store."""
    nodes.out.mkdir()
    write_json(nodes.out / ".tmp-nodes-0", msgspec.structs.replace(STATED, port=nodes.port))
    with pytest.raises(
        DpscopeError, match=f"\\(127.0.0.1:{nodes.port}: no connection within 3 s\\)"
    ):
        found_meeting(nodes.at(1, wait_s=1))
    store = TCPStore("127.0.0.1", nodes.port, None, True, timedelta(seconds=3), False)
    with pytest.raises(DpscopeError, match=r"what listens there is not node 0 of this command"):
        found_meeting(nodes.at(1, wait_s=1))
    del store


@pytest.mark.long
def test_a_listener_that_never_answers_blocks_no_node(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "_ATTEMPT_S", 1.0)
    nodes.out.mkdir()
    write_json(nodes.out / ".tmp-nodes-0", msgspec.structs.replace(STATED, port=nodes.port))
    with (
        socket.create_server(("127.0.0.1", nodes.port)),
        pytest.raises(DpscopeError, match="what listens there does not answer"),
    ):
        found_meeting(nodes.at(1, wait_s=1.5))
