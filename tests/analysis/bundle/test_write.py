"""Bundles of the example run: unpacked they are that run, small, without names."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from dpscope.analysis.bundle.write import collect, write
from dpscope.analysis.output.analyze import Targets, report_of
from dpscope.analysis.output.run_json import run_json
from dpscope.profiling.records.run_codes import RunCode
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.paths import EXAMPLE_RUN

FINDING = RunCode.WIDE_SPREAD.finding("of n0417")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The example, as measured on a host with a telling name, with things of others in its folder."""
    path = tmp_path / "mine"
    shutil.copytree(EXAMPLE_RUN, path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["environment"]["hostname"] = "n0417"
    network = {"address": "10.199.8.2", "interface": "ib0", "interface_chosen_by": "GLOO_SOCKET_IFNAME"}
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
    texts = {path: path.read_text() for path in there.rglob("*") if path.suffix in (".json", ".txt")}
    assert [path for path, text in texts.items() if "n0417" in text] == []
    assert json.loads(texts[there / "bundle" / "findings.json"])[0]["message"] == "of host0"
    assert json.loads(texts[there / "bundle" / "doctor.json"])["hostname"] == "host0"
    (other,) = json.loads(texts[there / "manifest.json"])["hosts"]
    assert (other["hostname"], other["address"], other["interface"]) == ("host1", "address0", "ib0")
    # 300 lines: 100 are left out, which the file states.
    (log,) = (text.splitlines() for path, text in texts.items() if path.name == "log.txt" and len(text) > 1)
    assert log[0] == "[100 lines before these are not in the bundle]"
    assert log[1:] == [f"line {line} of host0" for line in range(100, 300)]
    assert not list(there.rglob("*.docx"))
    assert (tmp_path / "b.zip").stat().st_size < 300_000


def test_traces_that_do_not_fit_are_named(run: Path) -> None:
    whole = collect(run, [], {})
    traces = [member for member in whole.members if "/traces/" in member.name or "/counters/" in member.name]
    gz = [len(member.content) for member in traces if member.name.endswith(".gz")]
    rest = sum(len(member.content) for member in whole.members) - sum(gz)
    # Room for all that is no trace (uncompressed it is larger) and for the first repeats' 8 of 12 traces, not for all.
    most = rest + sum(gz) // 2 + 30 * 300
    less = collect(run, [], {}, most)
    assert 0 < len(less.in_part) + len(less.left_out) < 6
    assert all(name.endswith("repeat1") for name in less.left_out)
    assert any("fits for" in note for note in less.listing().notes)
    with pytest.raises(DpscopeError, match="results without its traces, more than"):
        collect(run, [], {}, 1000)


def test_a_trace_that_cannot_be_read_cannot_be_read_there_either(run: Path) -> None:
    broken = next(run.glob("cells/single-*/repeat0/traces/*.gz"))
    broken.write_bytes(b"no trace")
    packed = {member.name: member.content for member in collect(run, [], {}).members}
    assert packed[broken.relative_to(run).as_posix()] == b""


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


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(DpscopeError, match="not a run folder"):
        collect(tmp_path, [], {})
