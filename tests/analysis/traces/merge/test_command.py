"""`dpscope merge`: which job of a run, what it prints, how it refuses."""

import json
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from dpscope.analysis.output.merge import clock_table, print_merge, traces_of_run
from dpscope.analysis.traces.merge.merge_ranks import merge_traces
from dpscope.analysis.traces.reading.chunks import DEFAULT_LIMITS
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import cut_file, ddp_trace, write_trace
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.trace_rules import violations

pytestmark = pytest.mark.process

RUN = EXAMPLE_RUN


def merge(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dpscope.launch.cli", "merge", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_run_is_merged_by_its_cell_of_several_ranks(tmp_path: Path) -> None:
    output = tmp_path / "merged.json"
    done = merge(RUN, "-o", output)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ddp-d2-b8, repeat 0\n")
    assert "residual" in done.stdout
    assert "https://ui.perfetto.dev" in done.stdout
    trace = json.loads(output.read_text())
    assert violations(trace) == []
    ranks = trace["dpscope"]["ranks"]
    assert [rank["title"] for rank in ranks] == ["rank 0", "rank 1"]
    assert ranks[1]["matched_collectives"] == 3  # an all-reduce in each of three steps
    assert ranks[1]["residual_us"] <= ranks[1]["worst_residual_us"]


def test_a_file_cut_short_ends_with_status_2(tmp_path: Path) -> None:
    write_trace(ddp_trace(0, 2).trace, tmp_path / "rank0.json")
    cut_file(write_trace(ddp_trace(1, 2).trace, tmp_path / "rank1.json"), 0.6)
    done = merge(tmp_path, "-o", tmp_path / "merged.json.gz")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"cut short or damaged: {tmp_path / 'rank1.json'};" in done.stderr
    assert (tmp_path / "merged.json.gz").exists()


def test_nothing_is_said_of_alignment_where_nothing_was_aligned(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(ddp_trace(rank, 2).trace, tmp_path / f"rank{rank}.json")
    both = clock_table(merge_traces(sorted(tmp_path.iterdir()), tmp_path / "both.json"))
    alone = clock_table(merge_traces([tmp_path / "rank0.json"], tmp_path / "alone.json"))
    assert "aligned" in both.notes[0]
    assert list(alone.notes) == []


def refused(paths: list[Path], output: Path) -> str:
    console = Console(file=StringIO())
    with pytest.raises(DpscopeError) as caught:
        print_merge(paths, output, None, None, DEFAULT_LIMITS, console)
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_mistakes(tmp_path: Path) -> None:
    trace, output = (
        write_trace(ddp_trace(0, 2).trace, tmp_path / "rank0.json"),
        tmp_path / "merged.json",
    )
    before = trace.read_bytes()
    done = merge(trace, "-o", trace)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"dpscope: {trace} is one of the traces to merge and is not overwritten; choose another place with -o\n"
    )
    assert trace.read_bytes() == before
    (tmp_path / "a.json").mkdir()
    assert "does not exist or is not a folder; create it" in refused(
        [trace], tmp_path / "missing" / "merged.json"
    )
    assert "is named *.json or *.json.gz" in refused([trace], tmp_path / "merged.pftrace")
    assert "is named *.json or *.json.gz" in refused([RUN], tmp_path / "merged.pftrace")
    assert "is not a file" in refused([trace], tmp_path / "a.json")
    assert "does not exist" in refused([tmp_path / "nothing.json"], output)
    assert "give it alone" in refused([RUN, trace], output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "rank0.json"]


def test_of_several_jobs_one_must_be_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(RUN, run)
    manifest = json.loads((run / "manifest.json").read_text())
    cell = next(planned for planned in manifest["plan"] if planned["cell"]["strategy"] == "ddp")
    manifest["plan"].append({"cell": {**cell["cell"], "batch_size": 16}})
    (run / "manifest.json").write_text(json.dumps(manifest))
    shutil.copytree(run / "cells/ddp-d2-b8", run / "cells/ddp-d2-b16")
    with pytest.raises(DpscopeError, match="name one of ddp-d2-b8, ddp-d2-b16 with --cell"):
        traces_of_run(run)
    shutil.rmtree(run / "cells")
    with pytest.raises(DpscopeError, match="holds no cell with traces"):
        traces_of_run(run)


def test_a_merged_trace_is_not_merged_again(tmp_path: Path) -> None:
    files = [
        write_trace(ddp_trace(rank, 2).trace, tmp_path / f"rank{rank}.json") for rank in (0, 1)
    ]
    output = tmp_path / "merged.json"
    merge_traces(files, output)
    # Its folder named again holds the output, too: it is an input then, and is kept.
    before = output.read_bytes()
    assert "is one of the traces to merge" in refused([tmp_path], output)
    assert "holds the events of several ranks" in refused([output], tmp_path / "other.json")
    assert output.read_bytes() == before
