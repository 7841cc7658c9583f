"""Several ranks in one file give what their own files give."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.generated_traces.generator import DdpOptions, Trace, ddp_trace, write_trace
from tests.generated_traces.relabeling import Marking, fused_trace
from tests.helpers.generated_checks import check_job
from tests.helpers.known import codes
from tests.helpers.made_traces import launch, on_device, step


@pytest.mark.parametrize(
    ("marking", "options"),
    [
        (marking, DdpOptions())
        for marking in ("args_rank", "process", "label", "device_label", "plain")
    ]
    + [
        (marking, DdpOptions(metadata="none", straggler=1))
        for marking in ("args_rank", "label", "plain")
    ],
)
def test_each_rank_is_read_by_itself(tmp_path: Path, marking: Marking, options: DdpOptions) -> None:
    ranks = [ddp_trace(rank, 4, options) for rank in range(4)]
    path = write_trace(
        fused_trace([rank.trace for rank in ranks], marking), tmp_path / "all.json.gz"
    )
    analysis = analyze_traces([path])
    check_job(analysis, ranks)
    assert "fused_ranks" in codes(analysis)
    assert [summary.rank for summary in analysis.summaries] == [0, 1, 2, 3]
    assert [one.severity for one in analysis.findings if one.code == "fused_ranks"] == [
        "warning" if marking == "plain" else "info"
    ]


def test_ambiguous_launches_are_left_out_and_reported(tmp_path: Path) -> None:
    ranks = [ddp_trace(rank, 2).trace for rank in range(2)]
    analysis = analyze_traces(
        [write_trace(fused_trace(ranks, "same_launches"), tmp_path / "all.json")]
    )
    assert {"fused_ranks", "events_damaged"} <= codes(analysis)
    assert analysis.steps.empty or analysis.steps["communication_us"].isna().all()


def rank_events(
    rank: int, process: int, device: int, kernel_us: float, **changed: Any
) -> list[Trace]:
    """Two steps of 1000 us, two launches each, and their kernels, 20 us later plus `delay_us`.

    `args` are in every event, correlations begin at `first_id`, all times at `start_us`.
    """
    args, host = changed.get("args", {}), {"pid": process, "tid": process}
    events: list[Trace] = []
    for number in range(2):
        start = 1000.0 * number + changed.get("start_us", 0.0)
        events.append(step(number, start, 900.0) | host)
        for index in range(2):
            identity, began = (
                changed.get("first_id", 1) + 10 * number + index,
                start + 10 + 200 * index,
            )
            events.append(launch(identity, began) | host)
            kernel = on_device(
                f"gemm{rank}",
                began + changed.get("delay_us", 20.0),
                kernel_us,
                identity,
                device=device,
            )
            events.append(kernel | {"pid": device})
    return [{**event, "args": event["args"] | args} for event in events]


def label(process: int, name: str) -> Trace:
    # Keys in alphabetical order, as tools that sort them write them.
    return {
        "args": {"name": name},
        "name": "process_name",
        "ph": "M",
        "pid": process,
        "tid": 0,
        "ts": 0,
    }


def computed(
    path: Path, *events: list[Trace]
) -> tuple[dict[tuple[int | None, int], list[float]], set[str]]:
    """The compute time of each (rank, device), step after step, and what was found."""
    path.write_text(
        json.dumps(
            {
                "distributedInfo": {"world_size": 2},
                "traceEvents": [one for some in events for one in some],
            }
        )
    )
    analysis = analyze_traces([path])
    found: dict[tuple[int | None, int], list[float]] = {}
    for row in analysis.steps.to_dict("records"):
        rank = None if pd.isna(row["rank"]) else int(row["rank"])
        found.setdefault((rank, int(row["device"])), []).append(row["compute_us"])
    return found, codes(analysis) - {"device_idle", "parallelism"}


def test_a_device_called_by_its_rank_has_the_number_of_another(tmp_path: Path) -> None:
    """Rank 0 on device 1, "RANK 0 - GPU", two kernels of 100 us a step; rank 1 on device 3, two of
    30 us.
    """
    events = [
        rank_events(0, 50, 1, 100.0, args={"rank": 0}),
        rank_events(1, 60, 3, 30.0, args={"rank": 1}),
    ]
    for labels in (
        [label(1, "RANK 0 - GPU")],
        [label(1, "RANK 0 - GPU"), label(3, "RANK 1 - GPU")],
    ):
        found, reported = computed(tmp_path / "all.json", labels, *events)
        assert found == {(0, 1): [200.0] * 2, (1, 3): [60.0] * 2}
        assert reported == {"fused_ranks"}


@pytest.mark.parametrize(
    "name", ["RANK {} - GPU", "rank:{}", "global_rank={}, device 0", "[rank{}]"]
)
@pytest.mark.parametrize("delay_us", [20.0, 1500.0])
def test_events_without_a_rank_are_of_the_rank_their_process_is_called_by(
    tmp_path: Path, name: str, delay_us: float
) -> None:
    """Correlations are alike, and with 1500 us of delay kernels run more than a step behind their
    launches.
    """
    found, reported = computed(
        tmp_path / "all.json",
        [
            label(50, "rank 1"),
            label(60, "rank 0"),
            label(0, name.format(1)),
            label(1, name.format(0)),
        ],
        rank_events(1, 50, 0, 100.0, delay_us=delay_us),
        rank_events(0, 60, 1, 30.0, delay_us=delay_us),
    )
    assert found == {(1, 0): [200.0] * 2, (0, 1): [60.0] * 2}
    assert reported == {"fused_ranks"}


@pytest.mark.parametrize("later_us", [0.0, 15.0, 100.0])
def test_equal_launches_on_both_ranks_are_reported(tmp_path: Path, later_us: float) -> None:
    """No name, one set of correlations, ranks at most 100 us apart, 190 us of lag: either may have
    launched any kernel.
    """
    first = rank_events(0, 50, 0, 100.0, delay_us=190.0)
    second = rank_events(1, 60, 1, 30.0, delay_us=190.0, start_us=later_us)
    found, reported = computed(tmp_path / "all.json", first, second)
    assert found == {}
    assert "events_damaged" in reported
