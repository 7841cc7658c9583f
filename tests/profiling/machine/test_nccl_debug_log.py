"""NCCL's log: published lines of each version, and a job's log written by hand."""

from pathlib import Path

import pytest

from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.records.calibration import Choice, TableEntry
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA

LOGS = DATA / "nccl_debug"

# Two ranks of one job as 2.27 prints them, with made-up values.
RANK0 = (LOGS / "two_ranks_2_27_rank0.log").read_text()
RANK1 = (LOGS / "two_ranks_2_27_rank1.log").read_text()


def written(folder: Path, text: str) -> Path:
    path = folder / f"nccl{len(list(folder.iterdir()))}.log"
    path.write_text(text)
    return path


def check_whole(paths: list[Path]) -> None:
    log = read_nccl_logs(paths)
    assert (log.library, log.hosts) == ("NCCL 2.27.5", ("node1",))
    (world,) = log.communicators
    assert (world.ranks, world.channels, world.nvls_channels, world.collnet_channels) == (2, 16, 0, 16)
    assert log.choices == (
        Choice("all_reduce", 1024, "tree", "ll", 1, None, 1),
        Choice("all_reduce", 8_388_608, "ring", "ll128", 16, None, 2),
    )
    assert log.links == {"P2P/CUMEM": 1, "NET/IB/GDRDMA": 1}
    assert log.peers == {"P2P/CUMEM": ((0, 1),), "NET/IB/GDRDMA": ((1, 0),)}
    assert (log.networks, log.infiniband, log.gpu_direct) == (("IB",), True, True)
    # 15 us + 8388608 B / 20 GB/s = 15 + 419.43 us.
    assert world.estimate_us("all_reduce", 8_388_608, "ring", "ll128") == pytest.approx(434.43, abs=0.01)
    assert world.estimate_us("all_reduce", 1, "pat", "simple") is None
    assert log.unread_lines == 0
    assert (log.network_ports, log.peer_access_off) == (2, None)


@pytest.mark.timeout(15)
def test_links_of_a_large_job_are_grouped_in_one_pass(tmp_path: Path) -> None:
    ranks = range(1024)
    pairs = [(rank, (rank + step) % len(ranks)) for rank in ranks for step in (1, 2, 4, 8, 16, 32, 64, 128)]
    lines = [
        f"node1:1:1 [0] NCCL INFO Channel 00/0 : {one}[0] -> {other}[0] [send] via NET/IB/0" for one, other in pairs
    ]
    log = read_nccl_logs([written(tmp_path, "\n".join(lines))])
    assert log.links == {"NET/IB": len(pairs)}
    assert log.peers["NET/IB"] == tuple(sorted(pairs))


def same_lines() -> str:
    zero, one = RANK0.splitlines(), RANK1.splitlines()
    return "\n".join([first + second for first, second in zip(zero, one, strict=False)] + zero[len(one) :])


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "node1: ", "[default0]:", None])
def test_one_file_with_a_launchers_prefix_or_ranks_that_write_into_the_same_line(
    tmp_path: Path, prefix: str | None
) -> None:
    lines = (RANK0 + RANK1).splitlines(keepends=True)
    check_whole([written(tmp_path, same_lines() if prefix is None else "".join(prefix + line for line in lines))])
    files = [written(tmp_path, RANK0), written(tmp_path, RANK1)]  # a file for each process
    check_whole(files)
    check_whole(files[::-1])


def test_cut_lines_are_counted_and_garbage_is_ignored(tmp_path: Path) -> None:
    log = read_nccl_logs([written(tmp_path, f"{RANK0}node1:10:10 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RI")])
    assert (log.unread_lines, sum(choice.calls for choice in log.choices)) == (1, 3)
    path = tmp_path / "nccl.log"
    path.write_bytes(b"\xff\xfe | AllReduce | Algo\n" + RANK0.encode() + b"\x00\x1b[31m Bytes -> Algo 1 proto 99\n")
    assert sum(choice.calls for choice in read_nccl_logs([path]).choices) == 3


def test_published_lines_of_earlier_versions() -> None:
    numbers = read_nccl_logs([LOGS / "numbers_24_h100.log"])
    assert numbers.choices == (
        Choice(None, 8, "tree", "ll", None, 25.200924, 3),
        Choice(None, 8_589_934_592, "ring", "simple", None, 86069.96875, 1),
    )
    sockets = read_nccl_logs([LOGS / "sockets_64_ranks.log"])
    assert sockets.links == {"NET/Socket": 4}
    assert [one.ranks for one in sockets.communicators] == [64]
    blocks = read_nccl_logs([LOGS / "table_2_2x.log"])
    assert blocks.unread_lines == 1  # the thread cuts the row of broadcasts


def test_the_table_of_earlier_versions(tmp_path: Path) -> None:
    complete = "h:9373:9456 [0] NCCL INFO comm 0x7 rank 0 nranks 4 cudaDev 0 busId 1000 - Init COMPLETE\n"
    text = (LOGS / "table_2_1x.log").read_text().replace("autodl-container-035011a13c-c17b1392", "h")
    (world,) = read_nccl_logs([written(tmp_path, text + complete)]).communicators
    assert world.entry("broadcast", "ring", "simple") == TableEntry("broadcast", "ring", "simple", 18.0, 3.0)
    assert world.estimate_us("reduce", 8e6, "ring", "ll") == pytest.approx(6.3 + 8e6 / 0.8 / 1e3)
    assert world.estimate_us("broadcast", 8e6, "tree", "ll") is None  # no bandwidth: not available


def test_a_file_without_nccl_lines_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match="has no line of NCCL") as refused:
        read_nccl_logs([written(tmp_path, "Epoch 1\n")])
    assert "\n" not in str(refused.value)
    with pytest.raises(DpscopeError, match="missing"):
        read_nccl_logs([tmp_path / "missing.log"])


def test_peer_access_that_is_off_and_a_proxy_of_another_rank(tmp_path: Path) -> None:
    lines = (
        "node1:10:21 [0] NCCL INFO P2P is disabled between connected GPUs 1 and 0. You can repress this message with "
        "NCCL_IGNORE_DISABLED_P2P=1.\n"
        "node1:10:30 [0] NCCL INFO Channel 00/0 : 0[0] -> 9[1] [send] via NET/IB/0(1)/GDRDMA\n"
    )
    log = read_nccl_logs([written(tmp_path, RANK0 + lines)])
    assert log.peer_access_off == "P2P is disabled between connected GPUs 1 and 0"
    assert log.links == {"P2P/CUMEM": 1, "NET/IB/GDRDMA": 1}
    for value, expected in (("1", "NCCL_P2P_DISABLE set by environment to 1"), ("0", None)):
        line = f"h:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to {value}.\n"
        assert read_nccl_logs([written(tmp_path, RANK0 + line)]).peer_access_off == expected


def calls(version: str, *lines: str, communicators: tuple[int, ...] = (4,)) -> str:
    """Rank 0's log: its version, its communicators, then calls."""
    complete = (
        f"ncclCommInitRank comm 0x{ranks} rank 0 nranks {ranks} cudaDev 0 busId a0 commId 0x{ranks} - Init COMPLETE"
        for ranks in communicators
    )
    known = [f"NCCL version {version}+cuda12.9"] if version else []
    return "".join(f"node1:10:10 [0] NCCL INFO {line}\n" for line in (*known, *complete, *lines))


IN_NAMES = "{}: 1024 Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}"  # since 2.24
IN_NUMBERS = "{}: 1024 Bytes -> Algo 1 proto 0 time 8.5"  # 2.23


@pytest.mark.parametrize(
    ("version", "form", "of_shares"),
    [
        ("2.24.3", IN_NAMES, 4096),
        ("2.30.7", IN_NAMES, 4096),
        ("2.23.4", IN_NUMBERS, 1024),
        ("", IN_NAMES, 4096),
        ("", IN_NUMBERS, 1024),
    ],
)
def test_sizes_are_of_the_larger_buffer_in_every_version(
    tmp_path: Path, version: str, form: str, of_shares: int
) -> None:
    """Four ranks: from 2.24 on a line states one rank's share of an all-gather or a reduce-scatter."""
    kinds = {"AllGather": of_shares, "ReduceScatter": of_shares, "AllReduce": 1024, "Broadcast": 1024, "Reduce": 1024}
    log = read_nccl_logs([written(tmp_path, calls(version, *(form.format(kind) for kind in kinds)))])
    assert {one.kind: one.size_bytes for one in log.choices} == {
        "all_gather": of_shares, "reduce_scatter": of_shares, "all_reduce": 1024, "broadcast": 1024, "reduce": 1024,
    }  # fmt: skip
    assert log.unread_lines == 0


def test_a_share_of_an_unknown_number_of_ranks_has_no_size(tmp_path: Path) -> None:
    """HSDP's rank 0 is in a group of 4 and in one of 2; before the second is made, the first is meant."""
    lines = [IN_NAMES.format(kind) for kind in ("AllGather", "AllReduce")]
    both = read_nccl_logs([written(tmp_path, calls("2.27.5", *lines, communicators=(4, 2)))])
    assert [(one.kind, one.size_bytes) for one in both.choices] == [("all_reduce", 1024)]
    assert both.unread_lines == 1
    later = calls("2.27.5", lines[0]) + calls("", communicators=(2,))
    log = read_nccl_logs([written(tmp_path, later)])
    assert [(one.kind, one.size_bytes) for one in log.choices] == [("all_gather", 4096)]
    equal = read_nccl_logs([written(tmp_path, calls("2.27.5", lines[0]) + calls("", lines[0]))])
    assert [(one.size_bytes, one.calls) for one in equal.choices] == [(4096, 2)]
