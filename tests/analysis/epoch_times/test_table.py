"""Tables of epoch times: what is accepted, the message of each mistake, and findings, each with a
table that shows it.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpscope.analysis.epoch_times.estimates import epoch_estimates
from dpscope.analysis.epoch_times.findings import table_findings
from dpscope.analysis.epoch_times.table import read_epoch_times
from dpscope.profiling.records.estimate_codes import EstimateCode
from dpscope.profiling.records.finding import Finding
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.epoch_tables import HEAD, SINGLE, SOUND
from tests.helpers.paths import PUBLISHED

SMALLEST = "strategy,batch_size,devices,epoch_seconds\n"


def write(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_example_table() -> None:
    times = read_epoch_times(PUBLISHED / "epoch_times.csv")
    # one run out of memory
    assert [row.epoch_seconds is None for row in times.rows].count(True) == 1
    first = times.rows[0]
    assert {row.study for row in times.of_study("coursework_ddp").rows} == {"coursework_ddp"}
    assert (len(times.rows), first.study, first.resolution_s) == (66, "coursework_l4", 0.01)
    assert (type(first.batch_size), type(first.epoch_seconds)) == (int, float)
    assert (times.absent_columns, times.unknown_columns) == (("steps_per_epoch", "nodes"), ())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("is empty", "strategy, batch_size, devices, epoch_seconds")),
        (SMALLEST, ("no rows",)),
        (
            "strategy|batch_size|devices|epoch_seconds\nddp|32|2|5\n",
            ("row 1", "no column", "separated by commas"),
        ),
        ("strategy,batch_size,devices\nddp,32,2\n", ("row 1", "no column epoch_seconds")),
        (
            "strategy,batch_size,devices,devices,epoch_seconds\nddp,1,2,2,3\n",
            ("column devices", "twice"),
        ),
        (
            SMALLEST + "single,32,1,10\nddp,32,2,fast\n",
            ("row 3", "column epoch_seconds", "'fast'", "not a number"),
        ),
        (SMALLEST + "ddp,32,2,OOM\n", ("row 2", "epoch_seconds", "'OOM'", "empty: out of memory")),
        (SMALLEST + "ddp,32,2,0\n", ("epoch_seconds", "'0'")),
        (SMALLEST + "ddp,32,2,1e999\n", ("epoch_seconds", "'1e999'")),
        (SMALLEST + 'ddp,"1,024",2,5\n', ("batch_size", "'1,024'")),
        (SMALLEST + "ddp,0,2,5\n", ("batch_size", "whole number from 1")),
        (SMALLEST + "ddp,32,,5\n", ("column devices", "is empty", "every row needs it")),
        (SMALLEST + "single,32,2,5\n", ("column devices", "'2'", "single is one device")),
        (SMALLEST + "ddp,32,2\n", ("row 2", "3 cells under 4 headings")),
        (SMALLEST + 'ddp,32,2,"5\n', ("row 2", "quotes")),
        (
            SMALLEST + "ddp,32,2,5\nddp,32,2,6\n",
            ("row 3", "again, as in row 2", "column nodes", "column run or study"),
        ),
        ("nodes," + SMALLEST + "3,ddp,32,2,5\n", ("row 2", "column nodes", "'3'", "2 devices")),
        (
            "batch_size_is," + SMALLEST + "local,ddp,32,2,5\n",
            ("batch_size_is", "'local'", "global nor per_device"),
        ),
        (
            "strategy,batchsize,devices,epoch_second\nddp,32,2,5\n",
            ("rename 'batchsize' to batch_size and 'epoch_second' to epoch_seconds in the first",),
        ),
        ("resolution_s," + SMALLEST + "-1,ddp,32,2,5\n", ("resolution_s", "'-1'", "from 0 on")),
        (SMALLEST + f"ddp,32,2,{'9' * 60}x\n", ("epoch_seconds", "...'")),
    ],
)
def test_a_mistake_is_reported_in_one_line(
    tmp_path: Path, text: str, parts: tuple[str, ...]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DpscopeError) as caught:
        read_epoch_times(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"strategy,\xff\xfe\n")
    for path, part in (
        (tmp_path / "absent.csv", "does not exist"),
        (tmp_path, "directory"),
        (binary, "not UTF-8"),
    ):
        with pytest.raises(DpscopeError, match=part):
            read_epoch_times(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    st.text(
        alphabet=st.sampled_from('strategy,batch_sizedevices\n"0123456789.eE+-naN \t'), max_size=80
    )
)
def test_any_text_is_a_table_or_one_line_of_error(tmp_path: Path, tail: str) -> None:
    path = write(tmp_path, SMALLEST + tail)
    try:
        rows, message = len(read_epoch_times(path).rows), ""
    except DpscopeError as error:
        rows, message = 0, str(error)
    assert (rows > 0) != (len(message.splitlines()) == 1)


def found_in(path: Path) -> list[Finding]:
    table = read_epoch_times(path)
    return table_findings(table, epoch_estimates(table.rows))


TABLES = {
    # 5 +- 4
    "clock_too_coarse": (SOUND.replace("55,,", "55,4,"), SOUND.replace("55,,", "55,0.1,")),
    "unknown_column": (SOUND.replace("provenance", "provenence"), SOUND),
    "unknown_strategy": (SOUND.replace("ddp", "dpp"), SOUND),
    "nothing_to_estimate": (HEAD + SINGLE, SOUND),
    "added_time_unknown": (SOUND.replace("ddp,20,global", "ddp,20,"), SOUND),
    "superlinear_speedup": (SOUND.replace("2,55", "2,39"), SOUND),
    "dp_is_no_all_reduce": (SOUND.replace("ddp", "dp"), SOUND),
}


@pytest.mark.parametrize("code", [one.code for one in EstimateCode])
def test_table_findings(tmp_path: Path, code: str) -> None:
    showing, clean = TABLES[code]
    (found,) = (finding for finding in found_in(write(tmp_path, showing)) if finding.code == code)
    assert found.message
    assert found.next_step
    assert code not in {finding.code for finding in found_in(write(tmp_path, clean))}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (SOUND.replace("ddp,20,global", "ddp,20,"), "batch_size_is is not given"),
        (
            SOUND.replace("1,100,", "1,,"),
            "batch 20, N 2: the single device ran out of memory at batch 10",
        ),
        (SOUND.replace("2,55", "2,"), "batch 20, N 2: no epoch time: out of memory"),
        (
            SOUND.replace("ddp,20", "ddp,30"),
            "batch 30, N 2: no single-device time at 15 samples per device",
        ),
        # 40 - 100/2 = -10
        (SOUND.replace("2,55", "2,40"), "negative: N devices took less than 1/N of the time"),
    ],
)
def test_an_added_time_that_is_unknown_has_its_reason(
    tmp_path: Path, text: str, reason: str
) -> None:
    (finding,) = (
        one for one in found_in(write(tmp_path, text)) if one.code == "added_time_unknown"
    )
    assert reason in finding.message


def test_a_misspelt_strategy_is_reported_with_the_one_that_is_meant(tmp_path: Path) -> None:
    text = SOUND.replace("single", "singel").replace("ddp", "horovod")
    (finding,) = (one for one in found_in(write(tmp_path, text)) if one.code == "unknown_strategy")
    assert "'singel' (did you mean single?), 'horovod'" in finding.message


def test_the_meaning_of_a_batch_is_read_in_any_case(tmp_path: Path) -> None:
    table = read_epoch_times(write(tmp_path, SOUND.replace("global", "Global")))
    assert {row.batch_size_is for row in table.rows} == {"global"}
