"""NCCL's choices, for traces and for runs; findings, each with a near miss."""

from pathlib import Path

import pytest

from dpscope.analysis.costs.nccl_choices import JobChoices, job_log, read_logs
from dpscope.analysis.report.nccl_tables import NcclChapter, nccl_findings, ring_sentence
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.nccl_logs import all_reduce, written_log

LINES = (
    all_reduce(1_576_964, "RING", "SIMPLE"),
    all_reduce(1_576_964, "RING", "SIMPLE"),
    all_reduce(907_840, "TREE", "LL128"),
    all_reduce(64, "NVLS", "SIMPLE"),
)


def connection(first: int, second: int, transport: str) -> str:
    return f"Channel 00/0 : {first}[{first}] -> {second}[{second}] [send] via {transport}"


def test_rows_hold_the_choice(tmp_path: Path) -> None:
    log, ranks = job_log([written_log(tmp_path, 8, *LINES)], [8])
    job = JobChoices(log, ranks, 1)
    nvls, tree, ring = job.rows
    assert (nvls.words, tree.words, ring.words) == ("nvls, simple", "tree, ll128", "ring, simple")
    assert (nvls.calls, tree.calls, ring.calls) == (1, 1, 2)
    assert (job.ring_bytes, job.bytes_in_all) == (2 * 1_576_964, 2 * 1_576_964 + 907_840 + 64)
    assert ring_sentence(job).startswith(
        "on 8 ranks the ring formula describes 3.15 MB of 4.06 MB (78%)"
    )


def chapter(folder: Path, *lines: str) -> NcclChapter:
    log, ranks = job_log([written_log(folder, 8, *lines)], [8])
    return NcclChapter((JobChoices(log, ranks, 1),))


def test_a_size_between_two_has_their_choice_if_it_is_one(tmp_path: Path) -> None:
    sizes = {1024: "TREE", 4096: "RING", 65536: "RING"}
    made = chapter(tmp_path, *(all_reduce(size, name, "SIMPLE") for size, name in sizes.items()))
    found = [
        made.choice(8, 1, "all_reduce", size) for size in (512, 1024, 2048, 5000, 65536, 70000)
    ]
    choices = [row.words if row is not None else None for row in found]
    assert choices == [None, "tree, simple", None, "ring, simple", "ring, simple", None]
    assert made.choice(4, 1, "all_reduce", 4096) is None


def test_a_log_of_another_job_is_refused(tmp_path: Path) -> None:
    log = written_log(tmp_path, 16, *LINES)
    with pytest.raises(
        DpscopeError, match=r"a log of another job, whose largest communicator has 16 ranks"
    ) as raised:
        job_log([log], [2, 8])
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith("give the log of the job with 2 or 8 ranks")
    assert job_log([log], [2, 16])[1] == 16


IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.5<0>"


def found(folder: Path, *lines: str) -> dict[str, Finding]:
    log = read_logs([written_log(folder, 8, *lines)])
    findings = list(nccl_findings(JobChoices(log, 8, 1)))
    assert len({one.code for one in findings}) == len(findings)
    return {one.code: one for one in findings}


DIRECT = connection(4, 0, "NET/IB/1/GDRDMA")
THROUGH_HOST, CUT = connection(0, 4, "NET/IB/0"), "AllReduce: 4096 Bytes -> Algo RI"
SOCKETS = (connection(0, 4, "NET/Socket/0"), connection(4, 0, "NET/Socket/0"))


NO_RDMA = "connections over InfiniBand or RoCE has no GPUDirect RDMA"


@pytest.mark.parametrize(
    ("code", "message", "lines"),
    [
        (
            "sockets_with_infiniband",
            "2 connections of ranks use TCP sockets (NET/Socket), ",
            (IB, *SOCKETS),
        ),
        ("", "no InfiniBand", SOCKETS),
        ("no_gpu_direct_rdma", f"1 of 2 {NO_RDMA}", (IB, THROUGH_HOST, DIRECT)),
        ("", "all direct", (IB, DIRECT, connection(1, 5, "NET/IB/0(4)/GDRDMA"))),
        ("nccl_log_incomplete", "1 line of choices is cut off, of an unknown form", (CUT,)),
    ],
)
def test_connections_that_could_be_faster_have_a_finding(
    tmp_path: Path, code: str, message: str, lines: tuple[str, ...]
) -> None:
    findings = found(tmp_path, *lines)
    assert list(findings) == [code] * bool(code)
    assert all(message in one.message for one in findings.values())
