"""Files that end before their events do: a step that may lack events has no times, the others have
those of the whole file.
"""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.job import Job
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.attribution import attribute
from dpscope.analysis.traces.steps.breakdown import step_table
from dpscope.profiling.store.errors import DpscopeError
from tests.generated_traces.generator import dp_trace, gloo_trace, trace_text
from tests.generated_traces.launched import Launched, write_launched_job
from tests.helpers.paths import DATA

CUTS = 12
STEPS = 8


def launched_text(folder: Path) -> bytes:
    return write_launched_job(folder, Launched(steps=STEPS))[0].read_bytes()


def unzipped(name: str) -> bytes:
    return gzip.decompress((DATA / name).read_bytes())


TEXTS: dict[str, Callable[[Path], bytes]] = {
    "buffers out of order": lambda _: unzipped("a100x2_ddp_resnet50_rank0.json.gz"),
    "one step": lambda _: unzipped("v100x8_ddp_dlrm/rank3.json.gz"),
    "gloo's threads one by one": lambda _: unzipped("compiled_ddp/0_0.pt.trace.json.gz"),
    "replicas' threads": lambda _: unzipped(
        "run_tiny/cells/dp-host-d2-b8/repeat0/traces/0_0.pt.trace.json.gz"
    ),
    "launched": launched_text,
    "DataParallel": lambda _: trace_text(dp_trace(2).trace).encode(),
    "gloo": lambda _: trace_text(gloo_trace(0, 2).trace).encode(),
}


def steps_of(path: Path) -> dict[tuple[object, object], dict[str, object]]:
    rows = step_table(attribute(read_trace(path))).assign(rank=0).records()
    return {(row["device"], row["step"]): row for row in rows}


def cut_files(folder: Path, text: bytes) -> Iterator[Path]:
    """The text cut at many places, and the compressed file of it at the places between."""
    packed = gzip.compress(text, mtime=0)
    for part in range(1, CUTS + 1):
        content, name = (packed, "cut.json.gz") if part % 2 else (text, "cut.json")
        path = folder / name
        path.write_bytes(content[: len(content) * part // (CUTS + 1)])
        yield path


@pytest.mark.long
@pytest.mark.parametrize("case", TEXTS)
def test_a_step_of_a_cut_file_has_the_times_of_the_whole_file_or_none(
    tmp_path: Path, case: str
) -> None:
    text = TEXTS[case](tmp_path)
    (tmp_path / "whole.json").write_bytes(text)
    whole = steps_of(tmp_path / "whole.json")
    for path in cut_files(tmp_path, text):
        try:
            cut = steps_of(path)
        except DpscopeError:
            continue  # nothing at all was read
        for place, row in cut.items():
            if row["step_us"] is not None:
                assert row == pytest.approx(whole[place], nan_ok=True), path
            else:
                assert row["partial_window"] is True
                assert row["exposed_us"] is None


def cut_in_step(folder: Path, number: int) -> Job:
    """The job whose rank 1 was cut amid the events of one step."""
    paths = write_launched_job(folder, Launched(steps=STEPS))
    text = paths[1].read_text()
    begin, end = (text.index(f'"ProfilerStep#{one}"') for one in (number, number + 1))
    paths[1].write_text(text[: (begin + end) // 2])
    return analyze_traces(paths)


@pytest.mark.parametrize("number", [3, 5])
def test_the_means_of_a_job_leave_out_the_step_in_which_a_file_ends(
    tmp_path: Path, number: int
) -> None:
    full = analyze_traces(write_launched_job(tmp_path, Launched(steps=STEPS)))
    cut = cut_in_step(tmp_path, number)
    steps = cut.steps[cut.steps["rank"] == 1]
    assert steps["step"].tolist() == [*range(number + 1)]
    assert steps["partial_window"].tolist() == [True, *[False] * (number - 1), True]
    assert steps["step_us"].isna().tolist() == [*[False] * number, True]
    assert full.ledger is not None
    assert cut.ledger is not None
    assert cut.ledger.traced_step_us == pytest.approx(full.ledger.traced_step_us)
    assert cut.ledger.exposed_us == pytest.approx(full.ledger.exposed_us)
    assert cut.ledger.windows == STEPS - 1 + number - 1
