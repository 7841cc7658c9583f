"""NCCL's log: published lines of each version, and a job's log written by hand."""

from pathlib import Path

import pytest

from dpscope.profiling.machine.nccl_debug_log import read_nccl_logs
from dpscope.profiling.records.calibration import Choice
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
    assert log.ranks == 2
    assert log.choices == (
        Choice("all_reduce", 1024, "tree", "ll", 1),
        Choice("all_reduce", 8_388_608, "ring", "ll128", 2),
    )
    assert log.links == {"P2P/CUMEM": 1, "NET/IB/GDRDMA": 1}
    assert (log.infiniband, log.gpu_direct) == (True, True)
    assert log.unread_lines == 0


@pytest.mark.timeout(15)
def test_links_of_a_large_job_are_grouped_in_one_pass(tmp_path: Path) -> None:
    ranks = range(1024)
    pairs = [
        (rank, (rank + step) % len(ranks))
        for rank in ranks
        for step in (1, 2, 4, 8, 16, 32, 64, 128)
    ]
    lines = [
        f"node1:1:1 [0] NCCL INFO Channel 00/0 : {one}[0] -> {other}[0] [send] via NET/IB/0"
        for one, other in pairs
    ]
    log = read_nccl_logs([written(tmp_path, "\n".join(lines))])
    assert log.links == {"NET/IB": len(pairs)}


def same_lines() -> str:
    zero, one = RANK0.splitlines(), RANK1.splitlines()
    return "\n".join(
        [first + second for first, second in zip(zero, one, strict=False)] + zero[len(one) :]
    )


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "node1: ", "[default0]:", None])
def test_one_file_with_a_launchers_prefix_or_ranks_that_write_into_the_same_line(
    tmp_path: Path, prefix: str | None
) -> None:
    lines = (RANK0 + RANK1).splitlines(keepends=True)
    check_whole(
        [
            written(
                tmp_path,
                same_lines() if prefix is None else "".join(prefix + line for line in lines),
            )
        ]
    )
    files = [written(tmp_path, RANK0), written(tmp_path, RANK1)]  # a file for each process
    check_whole(files)
    check_whole(files[::-1])


def test_cut_lines_are_counted_and_garbage_is_ignored(tmp_path: Path) -> None:
    log = read_nccl_logs(
        [written(tmp_path, f"{RANK0}node1:10:10 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RI")]
    )
    assert (log.unread_lines, sum(choice.calls for choice in log.choices)) == (1, 3)
    path = tmp_path / "nccl.log"
    path.write_bytes(
        b"\xff\xfe | AllReduce | Algo\n"
        + RANK0.encode()
        + b"\x00\x1b[31m Bytes -> Algo 1 proto 99\n"
    )
    assert sum(choice.calls for choice in read_nccl_logs([path]).choices) == 3


def test_published_lines_of_earlier_versions() -> None:
    numbers = read_nccl_logs([LOGS / "numbers_24_h100.log"])
    assert numbers.choices == (
        Choice(None, 8, "tree", "ll", 3),
        Choice(None, 8_589_934_592, "ring", "simple", 1),
    )
    sockets = read_nccl_logs([LOGS / "sockets_64_ranks.log"])
    assert sockets.links == {"NET/Socket": 4}
    assert sockets.ranks == 64


def test_a_file_without_nccl_lines_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match="has no line of NCCL") as refused:
        read_nccl_logs([written(tmp_path, "Epoch 1\n")])
    assert "\n" not in str(refused.value)
    with pytest.raises(DpscopeError, match="missing"):
        read_nccl_logs([tmp_path / "missing.log"])


def test_a_proxy_of_another_rank_is_counted_by_its_transport(tmp_path: Path) -> None:
    line = "node1:10:30 [0] NCCL INFO Channel 00/0 : 0[0] -> 9[1] [send] via NET/IB/0(1)/GDRDMA\n"
    log = read_nccl_logs([written(tmp_path, RANK0 + line)])
    assert log.links == {"P2P/CUMEM": 1, "NET/IB/GDRDMA": 1}


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
    """Four ranks: from 2.24 on a line states one rank's share of an all-gather or a
    reduce-scatter.
    """
    kinds = {
        "AllGather": of_shares,
        "ReduceScatter": of_shares,
        "AllReduce": 1024,
        "Broadcast": 1024,
        "Reduce": 1024,
    }
    log = read_nccl_logs(
        [written(tmp_path, calls(version, *(form.format(kind) for kind in kinds)))]
    )
    assert {one.kind: one.size_bytes for one in log.choices} == {
        "all_gather": of_shares, "reduce_scatter": of_shares, "all_reduce": 1024, "broadcast": 1024, "reduce": 1024,
    }  # fmt: skip
    assert log.unread_lines == 0


def test_a_share_of_an_unknown_number_of_ranks_has_no_size(tmp_path: Path) -> None:
    """HSDP's rank 0 is in a group of 4 and in one of 2; before the second is made, the first is
    meant.
    """
    lines = [IN_NAMES.format(kind) for kind in ("AllGather", "AllReduce")]
    both = read_nccl_logs([written(tmp_path, calls("2.27.5", *lines, communicators=(4, 2)))])
    assert [(one.kind, one.size_bytes) for one in both.choices] == [("all_reduce", 1024)]
    assert both.unread_lines == 1
    later = calls("2.27.5", lines[0]) + calls("", communicators=(2,))
    log = read_nccl_logs([written(tmp_path, later)])
    assert [(one.kind, one.size_bytes) for one in log.choices] == [("all_gather", 4096)]
    equal = read_nccl_logs([written(tmp_path, calls("2.27.5", lines[0]) + calls("", lines[0]))])
    assert [(one.size_bytes, one.calls) for one in equal.choices] == [(4096, 2)]
