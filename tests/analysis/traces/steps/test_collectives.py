"""Collectives that do not look like the usual ones: copy engines, graphs, generic kernels, queues;
when each was ready.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.generated_traces.builder import recorded
from tests.generated_traces.generator import DdpOptions, ddp_trace
from tests.helpers.generated_checks import analyzed
from tests.helpers.made_traces import (
    ALL_REDUCE,
    MAIN,
    Event,
    analyzed_events,
    event,
    launch,
    on_device,
    operator,
    step,
)

NCCL = 40
GENERIC = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"


def floats(*elements: int) -> dict[str, Any]:
    return {"Input Dims": [[count] for count in elements], "Input type": ["float"] * len(elements)}


def in_range(name: str, start: float, *elements: int) -> Event:
    return event("user_annotation", name, start, 9, args=floats(*elements))


def copied(kind: str, start: float, duration: float, correlation: int) -> Event:
    name = (
        f"Memcpy {kind} (Pinned -> Device)"
        if kind == "HtoD"
        else f"Memcpy {kind} (Device -> Device)"
    )
    return on_device(name, start, duration, correlation, NCCL, "gpu_memcpy", bytes=4000)


def test_a_wait_between_the_copies_of_a_collective_is_communication(tmp_path: Path) -> None:
    """NCCL 2.28: flags of 4 bytes to two ranks (100-102), 500 us until theirs arrive, data
    (600-660), flags again (662-664).

    A kernel computes from 90 to 200: of the 564 us of the collective 100 are hidden. A second
    all-gather follows, 700-704.
    """
    starts = {2: 100, 3: 101, 4: 600, 5: 602, 6: 662, 7: 663, 9: 700, 10: 702}
    times = {4: 30, 5: 58, 9: 2, 10: 2}
    copies = [
        copied("PtoP", start, times.get(number, 1), number) for number, start in starts.items()
    ]
    events = [
        step(1, 0, 800), launch(1, 2), on_device("ampere_sgemm", 90, 110, 1),
        in_range("nccl:_all_gather_base", 5, 1000), *(launch(number, 4 + number) for number in (2, 3, 4, 5, 6, 7)),
        in_range("nccl:_all_gather_base", 20, 1000), launch(9, 21), launch(10, 22), *copies,
    ]  # fmt: skip
    analysis = analyzed_events(tmp_path, events, world_size=4)
    table = analysis.collectives
    assert table["start_us"].tolist() == [100.0, 700.0]
    assert table["duration_us"].tolist() == [564.0, 4.0]
    assert table["concurrent"].tolist() == [0, 0]
    (row,) = analysis.steps.to_dict("records")
    assert (row["communication_us"], row["hidden_us"], row["exposed_us"]) == (568.0, 100.0, 468.0)
    # from the first event, 90, to the last one's end, 704: 110 of the kernel, 468 exposed, 36
    # between the collectives
    assert (row["step_us"], row["compute_us"], row["idle_us"], row["collective_count"]) == (
        614.0,
        110.0,
        36.0,
        2,
    )


def test_replayed_graphs_share_a_launch_and_have_no_sizes(tmp_path: Path) -> None:
    """Two replays of a graph: each launches three kernels, two of them all-reduces, with one
    correlation, no metadata.
    """
    events = []
    for index, begin in enumerate((0.0, 1000.0)):
        events += [step(index + 1, begin, 950), launch(index + 1, begin + 5, "cudaGraphLaunch")]
        events.append(on_device("ampere_sgemm", begin + 100, 50, index + 1))
        events += [
            on_device(ALL_REDUCE, begin + start, us, index + 1, NCCL)
            for start, us in ((120, 60), (200, 40))
        ]
    analysis = analyzed_events(tmp_path, events)
    assert analysis.steps["collective_count"].tolist() == [2, 2]
    assert analysis.steps["communication_us"].tolist() == [100.0, 100.0]
    assert analysis.steps["hidden_us"].tolist() == [30.0, 30.0]
    assert analysis.collectives["kind"].tolist() == ["all_reduce"] * 4
    assert analysis.collectives["bytes"].isna().all()
    codes = {finding.code for finding in analysis.findings}
    assert codes.isdisjoint({"events_of_no_step", "parallelism"})  # no backward pass is recorded


def generic(enclosing: str) -> list[Event]:
    """RCCL's generic kernel, which names no collective, on device 2, in a step that only
    `enclosing` identifies.
    """
    around = {
        "operator": [operator("c10d::allreduce_", 10, 9)],
        "range": [in_range("nccl:reduce_scatter", 10)],
    }
    stated: dict[str, Any] = (
        recorded("all_gather", 10, 40, "BFloat16", ranks=range(4))
        if enclosing == "metadata"
        else {}
    )
    kernels = [on_device("Cijk_Ailk_Bljk_SB", 50, 100, 1, 0, device=2)]
    kernels.append(on_device(GENERIC, 100, 100, 2, NCCL, device=2, **stated))
    return [step(1, 0, 400), launch(1, 2), *around.get(enclosing, []), launch(2, 11), *kernels]


@pytest.mark.parametrize(
    ("enclosing", "kind", "size"),
    [
        ("operator", "all_reduce", None),
        ("range", "reduce_scatter", None),
        ("metadata", "all_gather", 80),
        ("nothing", None, None),
    ],
)
def test_generic_kernels_take_their_kind_from_what_launched_them(
    tmp_path: Path, enclosing: str, kind: str | None, size: int | None
) -> None:
    analysis = analyzed_events(tmp_path, generic(enclosing), world_size=4)
    (row,) = analysis.collectives.to_dict("records")
    assert (None if pd.isna(row["kind"]) else row["kind"]) == kind
    assert (None if pd.isna(row["bytes"]) else row["bytes"]) == size
    assert row["device"] == 2
    (step,) = analysis.steps.to_dict("records")
    # stream 0 computes from 50 to 150, the kernel communicates from 100 to 200
    assert (step["device"], step["compute_us"], step["hidden_us"], step["exposed_us"]) == (
        2,
        100.0,
        50.0,
        50.0,
    )


@pytest.mark.parametrize("begins", ["created", "taken_up", "alone"])
def test_queueing_of_gloos_works(tmp_path: Path, begins: str) -> None:
    """Four works created at 110, 120, 130 and 140 us, served by two workers, first come, first
    served.

    Served from 110 to 200 and 120 to 180, then 180 to 250 and 200 to 300: the third queued 50 us,
    the fourth 60. Ranges begin when the work is created or taken up; "alone", without the operators
    that created them, nothing is known.
    """
    events = [step(1, 0, 1000), operator("aten::conv2d", 10, 80)]
    works = ((110, 110, 200, 1), (120, 120, 180, 2), (130, 180, 250, 2), (140, 200, 300, 1))
    for created, taken_up, end, worker in works:
        events += [] if begins == "alone" else [operator("c10d::allreduce_", created - 5, 5)]
        start = created if begins == "created" else taken_up
        place = {"tid": MAIN + worker, "args": floats(10)}
        events.append(event("user_annotation", "gloo:all_reduce", start, end - start, **place))
    queue_us = analyzed_events(tmp_path, events, backend="gloo").collectives.sort_values("order")[
        "queue_us"
    ]
    assert (
        queue_us.isna().all() if begins == "alone" else queue_us.tolist() == [0.0, 0.0, 50.0, 60.0]
    )


# Kernels before the optimizer take 194 + 100 + 8 (forward, loss) and 100 + 100 + 60 + 20 us
# (backward): 582 us. Buckets follow the first, the second and the last kernel of the backward pass;
# buffers go before anything is computed.
COMPUTED = 582
DONE = {"broadcast": {0.0}, "all_reduce": {402 / COMPUTED, 502 / COMPUTED, 1.0}}


@pytest.mark.parametrize("named_ranges", [True, False])
def test_what_was_computed_when_each_bucket_was_ready(tmp_path: Path, named_ranges: bool) -> None:
    ranks = [ddp_trace(rank, options=DdpOptions(named_ranges=named_ranges)) for rank in (0, 1)]
    table = analyzed(tmp_path, *ranks).collectives
    assert len(table) == 2 * 3 * 5
    # torch's own range identifies the optimizer's kernels as dpscope's does
    for kind, expected in DONE.items():
        found = set(table.loc[table["kind"] == kind, "compute_done"].astype(float).round(6))
        assert found == {round(one, 6) for one in expected}
    assert not table["compute_stream"].any()
