"""Bundles of the example run: unpacked they are that run, small, without names. Reduced traces give
the same measures.
"""

import gzip
import json
import shutil
import zipfile
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.bundle.write import collect, reduced_trace, write
from dpscope.analysis.output.run_json import run_json
from dpscope.analysis.output.run_screen import Targets, report_of
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import DATA, EXAMPLE_RUN

FINDING = RunCode.WIDE_SPREAD.finding("of n0417")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The example, as measured on a host with a revealing name; its folder also holds files of
    others.
    """
    path = tmp_path / "mine"
    shutil.copytree(EXAMPLE_RUN, path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["environment"]["hostname"] = "n0417"
    network = {
        "address": "10.199.8.2",
        "interface": "ib0",
        "interface_chosen_by": "GLOO_SOCKET_IFNAME",
    }
    manifest["hosts"] = [{"node": 1, "hostname": "n0900", **network}]
    (path / "manifest.json").write_text(json.dumps(manifest))
    log = next(path.glob("cells/ddp-*/repeat0/log.txt"))
    log.write_text("".join(f"line {line} of n0417\n" for line in range(300)))
    (path / "cells" / "notes.docx").write_bytes(b"mine")
    return path


@pytest.mark.long
def test_unpacked_it_is_the_same_run_without_names(run: Path, tmp_path: Path) -> None:
    bundle = collect(run, [FINDING], {"doctor": {"hostname": "n0417", "checks": []}})
    write(bundle, tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as file:
        file.extractall(tmp_path / "there")
    there = tmp_path / "there" / "mine"
    assert run_json(report_of(there, Targets())) == run_json(report_of(run, Targets()))
    texts = {
        path: path.read_text() for path in there.rglob("*") if path.suffix in (".json", ".txt")
    }
    assert [path for path, text in texts.items() if "n0417" in text] == []
    assert json.loads(texts[there / "bundle" / "findings.json"])[0]["message"] == "of host0"
    assert json.loads(texts[there / "bundle" / "doctor.json"])["hostname"] == "host0"
    (other,) = json.loads(texts[there / "manifest.json"])["hosts"]
    assert (other["hostname"], other["address"], other["interface"]) == ("host1", "address0", "ib0")
    # 300 lines: 100 are left out, which the file states.
    (log,) = (
        text.splitlines()
        for path, text in texts.items()
        if path.name == "log.txt" and len(text) > 1
    )
    assert log[0] == "[100 lines before these are not in the bundle]"
    assert log[1:] == [f"line {line} of host0" for line in range(100, 300)]
    assert not list(there.rglob("*.docx"))
    assert (tmp_path / "b.zip").stat().st_size < 300_000


def test_of_an_attached_script_only_names_of_options_are_kept(run: Path) -> None:
    """Also where a finding quotes its command, and in a folder of an older version, which stored
    secrets.
    """
    script = "/srv/me/project/train.py --lr 0.125 --api-key hunter2"
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["script"] = script
    finding = {
        "severity": "info",
        "code": "job_not_measured",
        "next_step": f"dpscope attach -- {script}",
    }
    manifest["findings"] = [{**finding, "message": "a job failed"}]
    manifest["environment"]["settings"] = {"NCCL_TOKEN": "hunter2", "NCCL_ALGO": "Ring"}
    (run / "manifest.json").write_text(json.dumps(manifest))
    log = next(run.glob("cells/ddp-*/repeat0/log.txt"))
    log.write_text("loading https://me:hunter2@host/data\n")
    members = collect(
        run, [RunCode.WIDE_SPREAD.finding(f"of {script}")], {}, most_bytes=2_000_000
    ).members
    texts = [one.content.decode() for one in members if one.name.endswith((".json", ".txt"))]
    assert not [one for one in texts for word in ("hunter2", "/srv/me", "0.125") if word in one]
    stored = json.loads(next(one.content for one in members if one.name == "manifest.json"))
    assert stored["script"] == "train.py --lr --api-key"
    assert stored["environment"]["settings"] == {"NCCL_TOKEN": "***", "NCCL_ALGO": "Ring"}


def test_nothing_of_others_is_overwritten(run: Path, tmp_path: Path) -> None:
    bundle = collect(run, [], {})
    (tmp_path / "b.zip").write_bytes(b"PK mine")
    with pytest.raises(DpscopeError, match="was not written by dpscope"):
        write(bundle, tmp_path / "b.zip")
    assert (tmp_path / "b.zip").read_bytes() == b"PK mine"
    write(bundle, tmp_path / "c.zip")
    first = (tmp_path / "c.zip").read_bytes()
    write(bundle, tmp_path / "c.zip")
    assert (tmp_path / "c.zip").read_bytes() == first


@pytest.mark.long
@pytest.mark.parametrize("name", ["a100x2_ddp_resnet50_rank0", "v100x8_ddp_dlrm/rank0"])
def test_a_real_trace_measures_the_same(name: str, tmp_path: Path) -> None:
    source = DATA / f"{name}.json.gz"
    target = tmp_path / source.name
    target.write_bytes(reduced_trace(source))
    before, after = analyze_traces([source]), analyze_traces([target])
    pd.testing.assert_frame_equal(after.steps, before.steps)
    pd.testing.assert_frame_equal(after.collectives, before.collectives)
    assert [finding.code for finding in after.findings] == [
        finding.code for finding in before.findings
    ]
    whole, reduced = read_trace(source), read_trace(target)
    for name in ("zero_ns", "host", "rank", "world_size", "device_names"):
        assert getattr(reduced, name) == getattr(whole, name)


def test_only_what_is_read_is_kept_and_times_keep_their_nanoseconds(tmp_path: Path) -> None:
    start = 1_700_000_000_000_000  # microseconds since 1970: a float would lose the fraction
    events = (
        f'{{"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": {start}.125, "dur": 2.5,'
        ' "args": {"Call stack": "/home/erika/train.py(3)", "Input Dims": [[2]]}},'
        f'{{"ph": "X", "cat": "python_function", "name": "/home/erika/x.py", "pid": 7, "tid": 7, "ts": {start}.0, "dur": 9}},'
        f'{{"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 1, "pid": 7, "tid": 7, "ts": {start}.0}},'
        '{"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "n0417", "path": "/x"}}'
    )
    source = tmp_path / "rank0.json"
    source.write_text(
        '{"distributedInfo": {"rank": 0, "world_size": 2, "backend": "nccl", "pg_config": "n0417"}, '
        f'"traceName": "/home/erika/t", "host_name": "n0417", "baseTimeNanoseconds": 5, "traceEvents": [{events}]}}'
    )
    packed = reduced_trace(source, lambda text: text.replace("n0417", "host0"))
    assert json.loads(gzip.decompress(packed)) == {
        "traceEvents": [
            {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 7, "tid": 7, "ts": 0.125, "dur": 2.5,
             "args": {"Input Dims": [[2]]}},
            {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": "host0"}},
        ],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},
        "host_name": "host0",
        "deviceProperties": [],
        "baseTimeNanoseconds": 5 + 1000 * start,
    }  # fmt: skip


@pytest.mark.long
def test_traces_that_do_not_fit_are_named(run: Path) -> None:
    whole = collect(run, [], {})
    traces = [
        member
        for member in whole.members
        if "/traces/" in member.name or "/counters/" in member.name
    ]
    gz = [len(member.content) for member in traces if member.name.endswith(".gz")]
    rest = sum(len(member.content) for member in whole.members) - sum(gz)
    # Room for all that is no trace (uncompressed it is larger) and for the first repeats' 8 of 12
    # traces, not for all.
    most = rest + sum(gz) // 2 + 30 * 300
    less = collect(run, [], {}, most)
    assert 0 < len(less.in_part) + len(less.left_out) < 6
    assert all(name.endswith("repeat1") for name in less.left_out)
    assert any("fits for" in note for note in less.listing().notes)
    with pytest.raises(DpscopeError, match="results without its traces, more than"):
        collect(run, [], {}, 1000)
    with pytest.raises(DpscopeError, match="not a run folder"):
        collect(run / "cells", [], {})


def test_an_invalid_trace_is_an_empty_member(run: Path) -> None:
    broken = next(run.glob("cells/single-*/repeat0/traces/*.gz"))
    broken.write_bytes(b"no trace")
    packed = {member.name: member.content for member in collect(run, [], {}).members}
    assert packed[broken.relative_to(run).as_posix()] == b""  # which readers report again
    with pytest.raises(DpscopeError, match="not a torch"):
        reduced_trace(broken)
