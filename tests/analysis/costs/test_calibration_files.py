"""nccl-tests' own output, old and new, and the errors for damaged logs."""

from pathlib import Path

import pytest

from dpscope.analysis.costs.calibration_files import calibration_from_logs, costs_at
from dpscope.analysis.report.calibration import calibration_tables
from dpscope.profiling.machine.link_specifications import parse_link
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA

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
    "# Collective test starting: {name}\n# nThread 1 nGpus 4 minBytes 1024 maxBytes 1048576\n# Using devices\n" + RANKS
)
ALL_GATHER = """1048576         65536     float    none      -1    20.00   52.43   39.32       0    19.00   55.19   41.39       0
    16777216       1048576     float    none      -1    80.00  209.72  157.29       0      N/A     N/A     N/A     N/A
"""
REDUCE_SCATTER = ALL_GATHER.replace("none", " sum")
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
    calibration = calibration_from_logs([LOGS / f"nccl_{name}.log" for name in ("allreduce", "broadcast", "reduce")])
    assert [fit.collective for fit in calibration.fits] == ["all_reduce", "broadcast", "reduce"]
    assert {(point.devices, point.dtype) for point in calibration.points} == {(8, "float32")}
    assert len(calibration.points) == 3 * 32  # 4 B to 8 GiB; those of 0 B move nothing
    largest = {point.collective: point for point in calibration.points if point.size_bytes == 8589934592}
    assert {name: point.times_us for name, point in largest.items()} == {
        "all_reduce": (63896.0,),
        "broadcast": (36896.0,),
        "reduce": (37613.0,),
    }
    assert largest["all_reduce"].count == 2147483648
    assert calibration.device_names == ("A100-SXM4-40GB",) * 8
    assert (calibration.source, calibration.backend, calibration.environment) == ("nccl-tests", "nccl", None)
    # By the model's name: 12 links of 25 GB/s.
    assert {count: (rate.name, rate.gb_per_s) for count, rate in calibration.links.items()} == {
        8: ("NVLink 3 x12", 300.0)
    }


def test_other_json_in_a_folder_is_no_calibration(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DpscopeError, match=r"--calibration .*neither"):
        costs_at(tmp_path)
    write(tmp_path, log(ALL_REDUCE))
    assert {point.collective for point in costs_at(tmp_path).points} == {"all_reduce"}


def test_in_place_columns_and_a_stated_link() -> None:
    calibration = calibration_from_logs([LOGS / "nccl_allreduce.log"], in_place=True, link=parse_link("250GB/s"))
    assert calibration.points[-1].times_us == (63959.0,)
    assert calibration.links[8].gb_per_s == 250.0
    assert calibration.links[8].source == "stated by the user"


@pytest.mark.parametrize(
    ("rows", "test", "collective"),
    [
        (ALL_GATHER, "all_gather_perf", "all_gather"),
        (ALL_GATHER, "alltoall_perf", "all_to_all"),
        (REDUCE_SCATTER, "reduce_scatter_perf", "reduce_scatter"),
        (REDUCE_SCATTER, "unnamed", "reduce_scatter"),  # distinguished from all-reduce by busbw / algbw = 3/4
        (ALL_REDUCE, "unnamed", "all_reduce"),  # 6/4
    ],
)
def test_new_logs(tmp_path: Path, rows: str, test: str, collective: str) -> None:
    calibration = calibration_from_logs([write(tmp_path, log(rows, test))])
    assert {point.collective for point in calibration.points} == {collective}
    assert [(point.size_bytes, point.times_us) for point in calibration.points] == [
        (1048576, (20.0,)),
        (16777216, (80.0,)),
    ]
    assert calibration.points[0].devices == 4
    assert calibration.links[4].name == "NVLink 4 x18"


def test_the_file_s_name_decides_what_columns_leave_open(tmp_path: Path) -> None:
    text = log(ALL_GATHER, "unnamed")
    calibration = calibration_from_logs([write(tmp_path, text, "all_gather-4gpus.log")])
    assert calibration.points[0].collective == "all_gather"
    with pytest.raises(DpscopeError, match="fit several collectives"):
        calibration_from_logs([write(tmp_path, text, "run.log")])


def test_several_tests_in_one_log(tmp_path: Path) -> None:
    """One after another, and, as tasks of srun without MPI print them, line by line in turns."""
    text = f"{log(ALL_REDUCE)}# Avg bus bandwidth : 1\n{log(REDUCE_SCATTER, 'reduce_scatter_perf')}"
    calibration = calibration_from_logs([write(tmp_path, text)])
    assert [fit.collective for fit in calibration.fits] == ["all_reduce", "reduce_scatter"]
    in_turns = "\n".join(f"{task}: {line}" for line in log(ALL_REDUCE).splitlines() for task in range(2))
    read = calibration_from_logs([write(tmp_path, in_turns)])
    assert [(point.devices, point.size_bytes) for point in read.points] == [(4, 1048576), (4, 16777216)] * 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no row"),
        ("nothing of the kind\n1 2 3\n", "has no row"),
        (ALL_REDUCE, "line 1: a row without the headings"),
        (NEW_HEADING + ALL_REDUCE, "lists 0 rank"),
        (NEW + NEW_HEADING + ALL_REDUCE[:60], "7 values under 13 headings"),
        (NEW + NEW_HEADING + ALL_REDUCE.replace("20.00", "2o.oo"), "2o.oo stands where a number must"),
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
    """What srun -l, mpirun, Intel MPI and pdsh put before each line changes nothing; rows keep their line numbers."""
    plain = calibration_from_logs([write(tmp_path, log(ALL_REDUCE), "plain.log")])
    others = ["gpu01:77:77 [0] NCCL INFO Launch mode Parallel", "1: gpu02:78:78 [0] NCCL INFO cudaDriver 12"]
    lines = [*others, *(prefix + line for line in log(ALL_REDUCE).splitlines())]
    read = calibration_from_logs([write(tmp_path, "\n".join(lines), "prefixed.log")])
    assert (read.points, read.nodes, read.links) == (plain.points, plain.nodes, plain.links)
    row = "1048576        262144      half"
    damaged = "\n".join(lines).replace(f"{row}     sum", row)
    number = next(place for place, line in enumerate(lines, 1) if row in line)
    with pytest.raises(DpscopeError, match=f"line {number}:"):
        calibration_from_logs([write(tmp_path, damaged, "damaged.log")])


def test_groups_of_a_split_job_are_no_larger_collective(tmp_path: Path) -> None:
    """NCCL_TESTS_SPLIT lists the ranks of all groups; rows are of the first rank's, here of two on one node."""
    text = log(ALL_REDUCE.replace("78.64", "52.43").replace("314.57", "209.72"))  # busbw = algbw on two ranks
    for rank in (1, 3):
        text = text.replace(f"Rank  {rank} Group  0", f"Rank  {rank} Group  1")
    calibration = calibration_from_logs([write(tmp_path, text)])
    assert {(point.collective, point.devices) for point in calibration.points} == {("all_reduce", 2)}
    assert len(calibration.device_names) == 2


def test_nodes_are_counted_by_host_and_kept_apart_at_one_count(tmp_path: Path) -> None:
    text = log(ALL_REDUCE)
    second = text.replace("102 on    node1", "102 on    node2").replace("103 on    node1", "103 on    node2")
    two = calibration_from_logs([write(tmp_path, "".join(f"0: {line}\n" for line in second.splitlines()), "two.log")])
    assert two.nodes == {4: 2}
    titles = [table.title for table in calibration_tables(two)]
    assert titles[0] == "all_reduce on 2x2 devices"  # the layout that the rate between nodes and --predict state
    both = calibration_from_logs([write(tmp_path, text, "one.log"), tmp_path / "two.log"])
    assert both.spans(4) == {1, 2}
    assert {len(both.on_nodes(nodes).points) for nodes in (1, 2)} == {2}
