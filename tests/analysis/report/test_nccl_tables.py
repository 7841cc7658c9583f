"""NCCL's choices next to the formulas and the measured times, for traces and for runs; findings, each with a near miss."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpscope.analysis.cells.comparison import Comparison
from dpscope.analysis.cells.predicted import CollectivePrediction
from dpscope.analysis.costs.nccl_choices import MeasuredTimes, job_choices, job_log, read_logs
from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.findings.predictions import collective_table
from dpscope.analysis.report.nccl_tables import NcclChapter, choices_table, nccl_findings, ring_sentence
from dpscope.launch.cli import app
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.records.links import DeviceLinks, Interconnect, PairLink
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.known import known
from tests.helpers.nccl_logs import all_reduce, written_log
from tests.helpers.paths import DATA, EXAMPLE_RUN

DLRM = DATA / "v100x8_ddp_dlrm"  # 8 ranks; all-reduces of 1,576,964 B and 907,840 B
LINES = (
    all_reduce(1_576_964, "RING", "SIMPLE"),
    all_reduce(1_576_964, "RING", "SIMPLE"),
    all_reduce(907_840, "TREE", "LL128"),
    all_reduce(64, "NVLS", "SIMPLE"),
)


def connection(first: int, second: int, transport: str) -> str:
    return f"Channel 00/0 : {first}[{first}] -> {second}[{second}] [send] via {transport}"


def test_rows_hold_nccls_time_both_formulas_and_the_measurement(tmp_path: Path) -> None:
    log = job_log([written_log(tmp_path, 8, *LINES)], [8])
    job = job_choices(log, CostSources(parse_link("100GB/s")), {("all_reduce", 907_840): 69.0})
    nvls, tree, ring = job.rows
    # NCCL: 12 us + S / 10 GB/s. Hop: LL128's ring has 28 us for 14 hops. Ring: 28 us + 2 x 7/8 S / 100 GB/s; tree: 6 hops.
    assert tree.nccl_us == pytest.approx(12 + 90.784)
    assert tree.ring_us == pytest.approx(28 + 15.8872)
    assert tree.formula_us == pytest.approx(12 + 15.8872)
    assert tree.measured_us == 69.0
    # Simple's ring: 56 us for 14 hops.
    assert ring.calls == 2
    assert ring.ring_us == ring.formula_us == pytest.approx(56 + 1.75 * 15.76964)
    assert ring.measured_us is None
    assert nvls.nccl_us is None  # the table has no such column
    assert nvls.formula_us == pytest.approx(2 * 4 + 64 / 1e5)
    assert (job.ring_bytes, job.bytes_in_all) == (2 * 1_576_964, 2 * 1_576_964 + 907_840 + 64)
    assert ring_sentence(job).startswith("on 8 ranks the ring formula describes 3.15 MB of 4.06 MB (78%)")


def test_without_a_link_the_formulas_are_unknown(tmp_path: Path) -> None:
    table = choices_table(chapter(tmp_path, *LINES).jobs)
    assert [row[8:] for row in table.rows] == [("NA", "NA", "NA")] * 3
    assert any(note.startswith("ring and formula NA") for note in table.notes)


def chapter(folder: Path, *lines: str, sources: CostSources | None = None) -> NcclChapter:
    log = job_log([written_log(folder, 8, *lines)], [8])
    return NcclChapter((job_choices(log, sources or CostSources(), {}),))


def test_peers_by_transport_are_listed_as_pairs(tmp_path: Path) -> None:
    links = [
        (0, 1, "P2P/CUMEM"),
        (1, 0, "P2P/CUMEM"),
        (1, 2, "NET/IB/0/GDRDMA"),
        *((n, n + 1, "SHM/direct") for n in range(20, 38)),
    ]
    made = chapter(tmp_path, *(connection(*one) for one in links))
    rows = {transport: pairs for _, transport, pairs in made.tables()["nccl_peers"].rows}
    assert (rows["P2P/CUMEM"], rows["NET/IB/GDRDMA"]) == ("0-1", "1→2")
    assert rows["SHM/direct"].startswith("20→21, 21→22, ")
    assert rows["SHM/direct"].endswith("35→36 and 2 more")
    (content,) = made.content()
    assert content["peers"]["P2P/CUMEM"] == [[0, 1], [1, 0]]  # type: ignore[index]


def test_a_size_between_two_has_their_choice_if_it_is_one(tmp_path: Path) -> None:
    sizes = {1024: "TREE", 4096: "RING", 65536: "RING"}
    made = chapter(tmp_path, *(all_reduce(size, name, "SIMPLE") for size, name in sizes.items()))
    found = [made.choice(8, 1, "all_reduce", size) for size in (512, 1024, 2048, 5000, 65536, 70000)]
    choices = [row.choice if row is not None else None for row in found]
    assert choices == [None, "tree, simple", None, "ring, simple", "ring, simple", None]
    assert made.choice(4, 1, "all_reduce", 4096) is None


def test_predictions_by_collective_have_both_formulas_of_their_own_size(tmp_path: Path) -> None:
    """2 MB between two sizes that ran as trees: 14 or 6 hops of 28/14 us, and 2 x 7/8 x 2 MB at 100 GB/s."""
    lines = [all_reduce(size, "TREE", "LL128") for size in (1_000_000, 4_000_000)]
    made = chapter(tmp_path, *lines, sources=CostSources(parse_link("100GB/s")))
    one = CollectivePrediction(
        "ddp-d8-b4", "all_reduce", size_bytes=2_000_000, ranks=8, per_step=1, measured_us=60.0, predicted_us=50.0
    )
    comparison = Comparison(predictions=(one,))
    table = known(collective_table(comparison, lambda each: made.choice(8, 1, each.kind, each.size_bytes)))
    assert table.headings[3:6] == ("NCCL chose", "ring [µs]", "its formula [µs]")
    assert table.rows[0][3:6] == ("tree, ll128", "63.0", "47.0")


def test_a_log_of_another_job_is_refused(tmp_path: Path) -> None:
    log = written_log(tmp_path, 16, *LINES)
    with pytest.raises(DpscopeError, match=r"a log of another job, whose largest communicator has 16 ranks") as raised:
        job_log([log], [2, 8])
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith("give the log of the job with 2 or 8 ranks")
    assert job_log([log], [2, 16]).communicators[0].ranks == 16


def analyze(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["analyze", *map(str, arguments)])
    if isinstance(result.exception, DpscopeError):
        return 2, str(result.exception)
    return result.exit_code, result.output


@pytest.mark.long
def test_traces_with_the_log_of_their_job(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    written_log(folder, 8, *LINES, "AllReduce: 4096 Bytes -> Algo RI")
    status, output = analyze(DLRM, "--nccl-log", folder, "--link", "100GB/s", "--format", "json")
    content = json.loads(output)
    assert status == 0
    (job,) = content["nccl"]
    assert (job["library"], job["ranks"], job["channels"], job["bytes"]) == ("NCCL 2.27.5", 8, 16, 4_061_832)
    by_size = {row["size_bytes"]: row for row in job["choices"]}
    collectives = [row for row in content["collectives"] if (row["kind"], row["bytes"]) == ("all_reduce", 907_840)]
    measured = [row["transfer_us"] for row in collectives if row["transfer_us"] is not None]
    assert min(measured) <= by_size[907_840]["measured_us"] <= max(measured)
    assert by_size[907_840]["algorithm"] == "tree"
    assert "nccl_log_incomplete" in {one["code"] for one in content["findings"]}
    status, output = analyze(DLRM, "--nccl-log", folder, "--link", "100GB/s")
    assert status == 0
    table = output[output.index("Predicted and measured, per collective") :]
    assert re.search(r"all_reduce +1\.58 MB +ring, simple +", table)
    assert re.search(r"all_reduce +907\.8 kB +tree, ll128 +", table)
    assert "What NCCL chose" in output
    assert "the ring formula describes 3.15 MB of 4.06 MB (78%)" in output
    assert "1 line of choices or cost tables is cut" in output.replace("\n", " ")


@pytest.mark.long
def test_a_run_with_the_log_of_one_of_its_jobs(tmp_path: Path) -> None:
    status, output = analyze(EXAMPLE_RUN, "--nccl-log", written_log(tmp_path, 2, *LINES), "--format", "json")
    content = json.loads(output)
    assert [job["ranks"] for job in content["nccl"]] == [2]
    for measured in (EXAMPLE_RUN, DLRM):
        status, message = analyze(measured, "--nccl-log", written_log(tmp_path, 64, *LINES), "--format", "json")
        assert (status, "a log of another job" in message) == (2, True)
    _, output = analyze(EXAMPLE_RUN, "--format", "json")
    assert json.loads(output)["nccl"] == []


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
    findings = list(nccl_findings(job_choices(log, CostSources(), measured or {}), interconnect))
    assert len({one.code for one in findings}) == len(findings)
    return {one.code: one for one in findings}


DIRECT, SHARED = connection(4, 0, "NET/IB/1/GDRDMA"), connection(0, 1, "SHM/direct/direct")
THROUGH_HOST, CUT = connection(0, 4, "NET/IB/0"), "AllReduce: 4096 Bytes -> Algo RI"
OFF = "NCCL_P2P_DISABLE set by environment to 1."
SOCKETS = (connection(0, 4, "NET/Socket/0"), connection(4, 0, "NET/Socket/0"))
PEERS, STRANGERS = (Interconnect(pairs=(PairLink(0, 1, peer_access=one),)) for one in (True, False))


NO_RDMA = "connections over InfiniBand or RoCE has no GPUDirect RDMA"
SHARED_MEMORY = "shared_memory_with_peer_access"


@pytest.mark.parametrize(
    ("code", "message", "lines", "interconnect"),
    [
        ("sockets_with_infiniband", "2 connections of ranks use TCP sockets (NET/Socket), ", (IB, *SOCKETS), None),
        ("", "no InfiniBand", SOCKETS, None),
        ("no_gpu_direct_rdma", f"1 of 2 {NO_RDMA}", (IB, THROUGH_HOST, DIRECT), None),
        ("", "all direct", (IB, DIRECT, connection(1, 5, "NET/IB/0(4)/GDRDMA")), None),
        (SHARED_MEMORY, "uses shared memory (SHM): NCCL_P2P_DISABLE set by environment to 1", (OFF, SHARED), None),
        (SHARED_MEMORY, "NVML reports peer access", (SHARED,), PEERS),
        ("", "nothing else is possible", (SHARED,), STRANGERS),
        ("", "peers are not known", (SHARED,), None),
        ("", "peers reach each other", (connection(0, 1, "P2P/CUMEM"),), PEERS),
        ("nccl_log_incomplete", "1 line of choices or cost tables is cut off, of an unknown form", (CUT,), None),
    ],
)
def test_connections_that_could_be_faster_have_a_finding(
    tmp_path: Path, code: str, message: str, lines: tuple[str, ...], interconnect: Interconnect | None
) -> None:
    findings = found(tmp_path, *lines, interconnect=interconnect)
    assert list(findings) == [code] * bool(code)
    assert all(message in one.message for one in findings.values())


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

    quick = {("all_reduce", MIB): 131.0, ("all_reduce", 2 * MIB): 129.0}  # within 5%
    assert found(tmp_path, *SWITCH, measured=quick) == {}  # measurements count before NCCL's prediction
    same = (all_reduce(MIB, "RING", "SIMPLE"), all_reduce(2 * MIB, "RING", "SIMPLE"))
    assert found(tmp_path, *same, measured={("all_reduce", MIB): 864.0, ("all_reduce", 2 * MIB): 129.0}) == {}
    assert found(tmp_path, *SWITCH, table=False) == {}  # no time is known


def test_fewer_channels_than_network_ports_or_nvlinks(tmp_path: Path) -> None:
    for channels, codes in ((1, ["fewer_channels_than_links"]), (2, [])):
        assert list(found(tmp_path, IB, connection(0, 4, "NET/IB/0/GDRDMA"), channels=channels)) == codes
        assert found(tmp_path, IB, connection(0, 1, "P2P/CUMEM"), channels=channels) == {}  # the ports carry nothing
    devices = (DeviceLinks(0, active_nvlinks=6), DeviceLinks(1, active_nvlinks=6))
    direct = Interconnect(devices, (PairLink(0, 1, direct_nvlinks=6),))
    (finding,) = found(tmp_path, channels=4, interconnect=direct).values()
    assert finding.message == "NCCL uses 4 channels for collectives, fewer than the 6 NVLinks of a GPU"
    assert found(tmp_path, channels=6, interconnect=direct) == {}
    switched = Interconnect(devices, (PairLink(0, 1, through_nvswitch=True),))
    assert found(tmp_path, channels=4, interconnect=switched) == {}  # each channel reaches every link
