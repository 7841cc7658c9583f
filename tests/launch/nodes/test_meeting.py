"""Nodes meet over loopback: all join, or one is late, has other options, sees another folder, or
has another node's rank.
"""

import socket
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C

from dpscope.launch.jobs.node_place import Address
from dpscope.launch.nodes.board import found_board
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.environments import environment
from tests.launch.nodes.conftest import TERMS, Nodes


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
        assert len(list(nodes.out.iterdir())) == 1  # by which the others know the folder
    nodes.wait()
    assert nodes.ended == {1: 7, 2: 7}
    assert list(nodes.out.iterdir()) == []


def test_a_node_that_is_early_waits_for_node_0(nodes: Nodes) -> None:
    nodes.out.mkdir()
    threading.Timer(0.5, nodes.start, (1,)).start()
    with nodes.meeting() as team:
        assert team.name(1) == "node 1 (n1)"
    nodes.wait()
    early = Nodes(nodes.out)
    early.start(1)
    assert not early.ended
    with early.meeting():
        pass
    early.wait()
    assert (nodes.ended, early.ended) == ({1: 7}, {1: 7})


@pytest.mark.long
def test_missing_nodes_are_named(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path / "run", count=3)
    nodes.start(2)
    message = failure(nodes, wait_s=3)
    assert message.startswith("--nodes 3: node 1 did not join within 3 s; start the command there")
    assert nodes.ended == {2: 2}
    assert f"Node 0: {message}" in nodes.notes  # node 2 prints it too, and is not left waiting


def test_a_folder_that_is_not_shared_ends_all(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpscope.launch.nodes.team.SEEN_WITHIN_S", 0.3)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    nodes.start(1, out=elsewhere)
    assert f"--out {elsewhere}: node 0 has another folder" in failure(nodes)
    assert "all must share it" in str(nodes.ended[1])


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({}, "with --devices unset, node 0 with 2x1: give the same command, of the same"),
        ({**TERMS, "--seed": "1"}, "was started with --seed 1, node 0 with unset"),
        ({"--devices": "2x2"}, "was started with --devices 2x2, node 0 with 2x1"),
    ],
)
def test_a_node_that_does_not_fit_ends_all_with_the_reason(
    nodes: Nodes, terms: dict[str, str], message: str
) -> None:
    nodes.start(1, terms=terms)
    assert message in failure(nodes)
    assert nodes.ended == {1: 2}
    assert message in nodes.notes[-1]  # which node 1 prints, too


def test_a_duplicate_node_rank_is_an_error_on_the_second_node(nodes: Nodes) -> None:
    nodes.start(1)
    with (
        nodes.meeting(),
        pytest.raises(DpscopeError, match="--node-rank 1: another node was started with it"),
    ):
        found_board(nodes.at(1, wait_s=5))
    nodes.wait()
    assert nodes.ended == {1: 7}


def test_a_port_that_is_in_use_is_an_error(nodes: Nodes) -> None:
    stated = f"--rendezvous 127.0.0.1:{nodes.port}: cannot listen on port {nodes.port}"
    with (
        socket.create_server(("", nodes.port)),
        pytest.raises(DpscopeError, match=stated),
        nodes.meeting(),
    ):
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
        is_everywhere = any("listening at ::" in note for note in nodes.notes)
        assert is_everywhere == (stated in ("localhost", "::1"))


@pytest.mark.long
def test_what_is_at_the_rendezvous_is_named(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing, or another store."""
    monkeypatch.setattr("dpscope.launch.nodes.board._CALL_S", timedelta(seconds=0.5))
    start = nodes.at(1, wait_s=1)
    with pytest.raises(DpscopeError, match=f"node 0 at 127.0.0.1:{nodes.port} within 1 s \\(.+\\)"):
        found_board(start)
    store = TCPStore("127.0.0.1", nodes.port, None, True, timedelta(seconds=3), False)
    with pytest.raises(DpscopeError, match="what listens there is not dpscope"):
        found_board(start)
    del store
