"""Findings about NCCL's log: each with a log that shows it and a near miss."""

from pathlib import Path

import pytest

from dpscope.analysis.costs.nccl_choices import MeasuredTimes, job_choices, read_logs
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.findings.nccl_choices import nccl_findings
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.links import DeviceLinks, Interconnect, PairLink
from tests.helpers.nccl_logs import all_reduce, written_log

IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.5<0>"


def found(
    folder: Path,
    *lines: str,
    channels: int = 16,
    measured: MeasuredTimes | None = None,
    interconnect: Interconnect | None = None,
    table: bool = True,
) -> dict[str, Finding]:
    log = read_logs([written_log(folder, 8, *lines, channels=channels, table=table)])
    findings = nccl_findings(job_choices(log, CostSources(), measured or {}), interconnect)
    assert len({one.code for one in findings}) == len(findings)
    return {one.code: one for one in findings}


def connection(first: int, second: int, transport: str) -> str:
    return f"Channel 00/0 : {first}[{first}] -> {second}[{second}] [send] via {transport}"


def test_sockets_although_infiniband_was_found(tmp_path: Path) -> None:
    sockets = [connection(0, 4, "NET/Socket/0"), connection(4, 0, "NET/Socket/0")]
    (finding,) = found(tmp_path, IB, *sockets).values()
    assert finding.code == "sockets_with_infiniband"
    assert finding.message.startswith("2 connections of ranks use TCP sockets")
    assert "NCCL_IB_DISABLE" in finding.next_step
    assert found(tmp_path, *sockets) == {}  # no InfiniBand
    assert found(tmp_path, IB, connection(0, 4, "NET/IB/0/GDRDMA")) == {}


def test_infiniband_without_gpu_direct(tmp_path: Path) -> None:
    through_host, direct = connection(0, 4, "NET/IB/0"), connection(4, 0, "NET/IB/1/GDRDMA")
    (finding,) = found(tmp_path, IB, through_host, direct).values()
    assert finding.code == "no_gpu_direct_rdma"
    assert finding.message == "1 of 2 connections over InfiniBand or RoCE has no GPUDirect RDMA"
    assert found(tmp_path, IB, direct, connection(1, 5, "NET/IB/0(4)/GDRDMA")) == {}
    assert found(tmp_path, connection(0, 4, "NET/Socket/0")) == {}


def test_shared_memory_although_peers_are_reachable(tmp_path: Path) -> None:
    shared = connection(0, 1, "SHM/direct/direct")
    (finding,) = found(tmp_path, "NCCL_P2P_DISABLE set by environment to 1.", shared).values()
    assert finding.code == "shared_memory_with_peer_access"
    assert finding.message.endswith("uses shared memory (SHM): NCCL_P2P_DISABLE set by environment to 1")
    peers = Interconnect(pairs=(PairLink(0, 1, peer_access=True),))
    assert list(found(tmp_path, shared, interconnect=peers)) == ["shared_memory_with_peer_access"]
    strangers = Interconnect(pairs=(PairLink(0, 1, peer_access=False),))
    assert found(tmp_path, shared, interconnect=strangers) == {}  # nothing else is possible
    assert found(tmp_path, shared) == {}
    assert found(tmp_path, connection(0, 1, "P2P/CUMEM"), interconnect=peers) == {}


MIB = 1 << 20
SWITCH = (all_reduce(MIB, "TREE", "LL"), all_reduce(2 * MIB, "RING", "SIMPLE"))


def test_a_smaller_bucket_that_takes_longer(tmp_path: Path) -> None:
    """By NCCL's table: 6 us + 1048576 B / 2 GB/s = 530.3 us, and 56 us + 2097152 B / 25 GB/s = 139.9 us."""
    (finding,) = found(tmp_path, *SWITCH).values()
    assert finding.code == "protocol_slows_smaller_bucket"
    assert finding.message == (
        "an all-reduce of 1.05 MB (tree, ll) takes 530.3 µs, one of 2.10 MB (ring, simple) 139.9 µs, predicted by NCCL"
    )
    slow = {("all_reduce", MIB): 864.0, ("all_reduce", 2 * MIB): 129.0}
    assert found(tmp_path, *SWITCH, measured=slow)[finding.code].message.endswith("129.0 µs, measured")


def test_a_smaller_bucket_that_takes_less_or_has_the_same_protocol(tmp_path: Path) -> None:
    quick = {("all_reduce", MIB): 131.0, ("all_reduce", 2 * MIB): 129.0}  # within 5%
    assert found(tmp_path, *SWITCH, measured=quick) == {}  # measurements count before NCCL's prediction
    same = (all_reduce(MIB, "RING", "SIMPLE"), all_reduce(2 * MIB, "RING", "SIMPLE"))
    assert found(tmp_path, *same, measured={("all_reduce", MIB): 864.0, ("all_reduce", 2 * MIB): 129.0}) == {}
    assert found(tmp_path, *SWITCH, table=False) == {}  # no time is known


@pytest.mark.parametrize(("channels", "codes"), [(1, ["fewer_channels_than_links"]), (2, [])])
def test_fewer_channels_than_network_ports(tmp_path: Path, channels: int, codes: list[str]) -> None:
    assert list(found(tmp_path, IB, connection(0, 4, "NET/IB/0/GDRDMA"), channels=channels)) == codes
    assert found(tmp_path, IB, connection(0, 1, "P2P/CUMEM"), channels=channels) == {}  # the ports carry nothing


def test_fewer_channels_than_nvlinks(tmp_path: Path) -> None:
    devices = (DeviceLinks(0, active_nvlinks=6), DeviceLinks(1, active_nvlinks=6))
    direct = Interconnect(devices, (PairLink(0, 1, direct_nvlinks=6),))
    (finding,) = found(tmp_path, channels=4, interconnect=direct).values()
    assert finding.message == "NCCL uses 4 channels for collectives, fewer than the 6 NVLinks of a GPU"
    assert found(tmp_path, channels=6, interconnect=direct) == {}
    switched = Interconnect(devices, (PairLink(0, 1, through_nvswitch=True),))
    assert found(tmp_path, channels=4, interconnect=switched) == {}  # each channel reaches every link


def test_a_cut_line_is_reported(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, "AllReduce: 4096 Bytes -> Algo RI").values()
    assert (finding.code, finding.severity) == ("nccl_log_incomplete", "info")
    assert finding.message == "1 line of choices or cost tables is cut off or of an unknown form"
