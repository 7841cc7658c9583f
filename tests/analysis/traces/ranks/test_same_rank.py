"""Several files of one rank, as tensorboard_trace_handler leaves one for each cycle: with collectives, without, and mixed."""

from pathlib import Path

import pytest

from dpscope.analysis.traces.merge.merge_ranks import merge_traces
from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.made_traces import Event, launch, on_device, step, write

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def cycle(communicates: bool, number: int) -> list[Event]:
    """Two steps of 100 us, each with 50 us of computing or communicating, numbered through all cycles as torch does."""
    kernel, begin = ALL_REDUCE if communicates else "gemm", 1000.0 * number
    events = [step(2 * number + 1, begin, 100), step(2 * number + 2, begin + 100, 100)]
    for correlation, start in ((1, begin + 10), (2, begin + 110)):
        events += [launch(correlation, start - 5), on_device(kernel, start, 50, correlation)]
    return events


@pytest.mark.long
@pytest.mark.parametrize(
    "communicates",
    [(False, False), (True, False), (False, True), (True, True), (False,) * 60],
    ids=["neither", "first", "second", "both", "60 files"],
)
def test_cycles_of_one_rank_are_all_read(tmp_path: Path, communicates: tuple[bool, ...]) -> None:
    for index, one in enumerate(communicates):
        path = write(tmp_path, cycle(one, index), world_size=2 if any(communicates) else 1)
        path.rename(tmp_path / f"host_4711.{1_700_000_000_000 + index}.pt.trace.json")
    analysis = analyze_traces([tmp_path])
    assert len(analysis.steps) == 2 * len(communicates)
    assert len(analysis.collectives) == 2 * sum(communicates)
    assert analysis.collectives["transfer_us"].isna().all()


def test_cycles_without_collectives_are_merged(tmp_path: Path) -> None:
    files = []
    for index in range(2):
        path = write(tmp_path, cycle(False, index), world_size=1)
        files.append(path.rename(tmp_path / f"host_4711.{index}.pt.trace.json"))
    assert [rank.events for rank in merge_traces(files, tmp_path / "merged.json").ranks] == [6, 6]
