"""nccl-tests' own output, old and new, and the errors for damaged logs."""

import re
from pathlib import Path

import numpy as np
import pytest

from dpscope.analysis.costs.calibration_files import (
    calibration_from_logs,
    load_calibration,
    wrong_results,
)
from dpscope.analysis.report.calibration import calibration_tables
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA, ROOT

LOGS = DATA / "nccl_tests"

RANKS = "".join(
    f"#  Rank  {rank} Group  0 Pid  {100 + rank} on    node1 device  {rank} [0000:07:00] NVIDIA H100 80GB HBM3\n"
    for rank in range(4)
)
NEW_HEADING = """#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
"""
NEW = (
    "# Collective test starting: {name}\n# nThread 1 nGpus 4 minBytes 1024 maxBytes 1048576\n# Using devices\n"
    + RANKS
)
ALL_GATHER = """1048576         65536     float    none      -1    20.00   52.43   39.32       0    19.00   55.19   41.39       0
    16777216       1048576     float    none      -1    80.00  209.72  157.29       0      N/A     N/A     N/A     N/A
"""
ALL_REDUCE = """1048576        262144      half     sum      -1    20.00   52.43   78.64       0    19.00   55.19   82.78       0
    16777216       4194304      half     sum      -1    80.00  209.72  314.57       0    79.00  212.37  318.56       0
"""


def write(folder: Path, text: str, name: str = "run.log") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def log(rows: str, name: str = "all_reduce_perf") -> str:
    return NEW.format(name=name) + NEW_HEADING + rows


def test_old_logs() -> None:
    calibration = calibration_from_logs(
        [LOGS / f"nccl_{name}.log" for name in ("allreduce", "broadcast", "reduce")]
    )
    assert [fit.collective for fit in calibration.fits] == ["all_reduce", "broadcast", "reduce"]
    assert {(point.devices, point.dtype) for point in calibration.points} == {(8, "float32")}
    assert len(calibration.points) == 3 * 32  # 4 B to 8 GiB; those of 0 B move nothing
    largest = {
        point.collective: point for point in calibration.points if point.size_bytes == 8589934592
    }
    assert {name: point.times_us for name, point in largest.items()} == {
        "all_reduce": (63896.0,),
        "broadcast": (36896.0,),
        "reduce": (37613.0,),
    }
    assert largest["all_reduce"].count == 2147483648
    assert calibration.device_names == ("A100-SXM4-40GB",) * 8
    assert (calibration.source, calibration.backend, calibration.environment) == (
        "nccl-tests",
        "nccl",
        None,
    )
    # By the model's name: 12 links of 25 GB/s.
    assert {count: (rate.name, rate.gb_per_s) for count, rate in calibration.links.items()} == {
        8: ("NVLink 3 x12", 300.0)
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no row"),
        ("nothing of the kind\n1 2 3\n", "has no row"),
        (ALL_REDUCE, "line 1: a row without the headings"),
        (NEW_HEADING + ALL_REDUCE, "lists 0 rank"),
        (NEW + NEW_HEADING + ALL_REDUCE[:60], "7 values under 13 headings"),
        (
            NEW + NEW_HEADING + ALL_REDUCE.replace("20.00", "2o.oo"),
            "2o.oo stands where a number must",
        ),
        (NEW + NEW_HEADING + ALL_REDUCE.replace("20.00", " 0.00"), "a time of 0.00 µs"),
    ],
)
def test_damaged_logs_are_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DpscopeError, match=message) as raised:
        calibration_from_logs([write(tmp_path, text)])
    assert "\n" not in str(raised.value)
    assert "run.log" in str(raised.value)


def test_missing_files_and_missing_columns(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match="does not exist; name a log"):
        calibration_from_logs([tmp_path / "none.log"])
    with pytest.raises(DpscopeError, match="name one log"):
        calibration_from_logs([])
    only = ALL_GATHER.replace("19.00   55.19   41.39       0", "  N/A     N/A     N/A     N/A")
    with pytest.raises(DpscopeError, match="no in-place time"):
        calibration_from_logs([write(tmp_path, log(only, "all_gather_perf"))], in_place=True)


@pytest.mark.parametrize(
    "prefix",
    [
        "0: ",
        " 0: ",
        "[1,0]<stdout>:",
        "[prterun-gpu01-77@1,0]<stdout>: ",
        "Mon Jan  5 10:00:00 2026<stdout>:",
        "[0] ",
        "gpu01: ",
    ],
)
def test_prefixes_of_launchers(tmp_path: Path, prefix: str) -> None:
    """What srun -l, mpirun, Intel MPI and pdsh put before each line changes nothing; rows keep
    their line numbers.
    """
    plain = calibration_from_logs([write(tmp_path, log(ALL_REDUCE), "plain.log")])
    others = [
        "gpu01:77:77 [0] NCCL INFO Launch mode Parallel",
        "1: gpu02:78:78 [0] NCCL INFO cudaDriver 12",
    ]
    lines = [*others, *(prefix + line for line in log(ALL_REDUCE).splitlines())]
    read = calibration_from_logs([write(tmp_path, "\n".join(lines), "prefixed.log")])
    assert (read.points, read.nodes, read.links) == (plain.points, plain.nodes, plain.links)
    row = "1048576        262144      half"
    damaged = "\n".join(lines).replace(f"{row}     sum", row)
    number = next(place for place, line in enumerate(lines, 1) if row in line)
    with pytest.raises(DpscopeError, match=f"line {number}:"):
        calibration_from_logs([write(tmp_path, damaged, "damaged.log")])


def test_nodes_are_counted_by_host_and_kept_apart_at_one_count(tmp_path: Path) -> None:
    text = log(ALL_REDUCE)
    second = text.replace("102 on    node1", "102 on    node2").replace(
        "103 on    node1", "103 on    node2"
    )
    two = calibration_from_logs(
        [write(tmp_path, "".join(f"0: {line}\n" for line in second.splitlines()), "two.log")]
    )
    assert two.nodes == {4: 2}
    # a log has no iterations, and no fastest rank
    assert {"spread [%]", "shortest [µs]"}.isdisjoint(calibration_tables(two)[0].headings)
    titles = [table.title for table in calibration_tables(two)]
    # the layout that the rate between nodes and --predict state
    assert titles[0] == "all_reduce on 2x2 devices"
    both = calibration_from_logs([write(tmp_path, text, "one.log"), tmp_path / "two.log"])
    assert both.spans(4) == {1, 2}
    assert {len(both.on_nodes(nodes).points) for nodes in (1, 2)} == {2}


def test_the_spread_of_a_size_is_the_interquartile_range_over_the_median() -> None:
    calibration = load_calibration(ROOT / "examples" / "run_cpu")
    first, *_ = calibration_tables(calibration)
    low, middle, high = np.percentile(calibration.points[0].times_us, [25, 50, 75])
    assert first.values["spread"][0] == pytest.approx((high - low) / middle)


# Two jobs, three jobs, cut lists, rows of another job: what a log itself contradicts.

# busbw = algbw on two ranks
TWO_RANKS = ALL_REDUCE.replace("78.64", "52.43").replace("314.57", "209.72")
OF_ONE_JOB = "# Using devices\n" + RANKS[: RANKS.index("#  Rank  2")]


def job(host: str, microseconds: float) -> list[str]:
    """The lines of a job of two ranks on a host: 1 MiB and 2 MiB in the given time and twice as
    much.
    """
    rows = ""
    for size, time in ((1 << 20, microseconds), (1 << 21, 2 * microseconds)):
        rate = size / time / 1e3
        rows += f"{size} {size // 4} float sum -1 {time:.2f} {rate:.2f} {rate:.2f} 0 {time:.2f} {rate:.2f} {rate:.2f} 0\n"
    text = f"# nThread 1 nGpus 2 agg iters: 1 graph: 0\n{OF_ONE_JOB.replace('node1', host)}{NEW_HEADING}{rows}"
    return f"{text}# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1\n".splitlines()


def interleaved(*jobs: list[str]) -> str:
    return "".join(f"{line}\n" for lines in zip(*jobs, strict=True) for line in lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            interleaved(job("a", 64), job("b", 117)),
            r"rank 0 is listed 2 times \(on a, b\): several jobs",
        ),
        (
            interleaved(job("a", 64), job("b", 117), job("c", 64)),
            r"rank 0 is listed 3 times \(on a, b, c\)",
        ),
        (interleaved(job("a", 64), job("a", 64)), r"rank 0 is listed 2 times \(on a, a\)"),
        # one job lists its ranks before the other does
        (
            "\n".join(job("a", 64)[:4]) + "\n" + interleaved(job("b", 64), job("b", 64))[120:],
            "several jobs",
        ),
        # the lists were removed, or one job began earlier: each job ends once, and nothing follows
        # its end
        (
            interleaved(job("a", 64)[4:], job("b", 64)[4:]).replace(
                "#       size", OF_ONE_JOB + "#       size", 1
            ),
            "more than one job",
        ),
        (log(ALL_REDUCE).replace(RANKS, RANKS * 2), "rank 0 is listed 2 times"),
        (log(ALL_REDUCE).replace("#  Rank  1", "#  cut"), "lacks rank 1"),
        # 4 ranks are listed, but the rates are those of 2
        (log(TWO_RANKS), r"busbw / algbw is 1.00, and on the 4 ranks listed it is all_reduce 1.50"),
        (
            log(ALL_REDUCE, "all_gather_perf"),
            r"busbw / algbw is 1.50, and on the 4 ranks listed it is all_gather 0.75",
        ),
        (log(TWO_RANKS, "sendrecv_perf"), "sendrecv_perf tests no collective"),
        (
            log(ALL_REDUCE).replace(RANKS, RANKS[: RANKS.index("#  Rank  1")]),
            "lists 1 rank .*MPI=1",
        ),
    ],
)
def test_logs_that_contradict_themselves_are_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    with pytest.raises(DpscopeError, match=message) as raised:
        calibration_from_logs([write(tmp_path, text, "all_reduce_perf.log")])
    assert "\n" not in str(raised.value)


def test_repeats_are_merged_unless_they_disagree(tmp_path: Path) -> None:
    """Two jobs of two ranks each, one at 20 and one at 10 GB/s: no rate is both's."""
    a, slightly, b = (job(host, time) for host, time in (("a", 64), ("a", 70), ("b", 117)))
    calibration = calibration_from_logs([write(tmp_path, "\n".join([*a, *slightly]))])
    assert [point.times_us for point in calibration.points] == [
        (64.0,),
        (128.0,),
        (70.0,),
        (140.0,),
    ]
    labelled = interleaved([f"0: {line}" for line in a], [f"1: {line}" for line in b])
    for text in ("\n".join([*a, *b]), labelled):
        with pytest.raises(
            DpscopeError,
            match=r"2.10 MB of all_reduce on 2 devices take 128.0 µs on a and 234.0 µs on b: too different",
        ):
            calibration_from_logs([write(tmp_path, text)])


def test_wrong_results_are_a_warning(tmp_path: Path) -> None:
    right, wrong = log(ALL_REDUCE), log(ALL_REDUCE.replace("78.64       0", "78.64      50"))
    failed = right + "# Out of bounds values : 50 FAILED\n"
    old = (LOGS / "nccl_allreduce.log").read_text().replace("0 OK", "3 FAILED")
    unchecked = log(ALL_REDUCE.replace("78.64       0", "78.64     N/A"))
    for text, where in ((wrong, r"in 1 of 2 rows \(#wrong\)"), (failed, "FAILED"), (old, "FAILED")):
        calibration = calibration_from_logs([write(tmp_path, text)])
        (finding,) = calibration.findings
        assert (finding.severity, finding.code) == ("warning", "calibration_results_wrong")
        assert re.search(where, finding.message)
        assert wrong_results(calibration) == (finding,)
    for text in (right, unchecked, right + "# Out of bounds values : 0 OK\n"):
        assert calibration_from_logs([write(tmp_path, text)]).findings == ()
