"""A gloo range that its worker thread closes late ends with the pass that waited for it."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.made_traces import Event, analyzed_events, event, operator, step


def reduced(start_us: float, duration_us: float, **args: Any) -> Event:
    return event("user_annotation", "gloo:all_reduce", start_us, duration_us, tid=3, args=args)


def two_steps(passes: bool, all_reduce_us: float = 700.0) -> list[Event]:
    """Two steps of 1000 us: backward 300-600, optimizer 650-850; the all-reduce begins at 400 in
    both.
    """
    events = []
    for number, start in ((1, 1000.0), (2, 2000.0)):
        events += [
            step(number, start, 1000),
            operator("aten::convolution_backward", start + 300, 200, tid=2),
        ]
        events += [
            reduced(start + 400, all_reduce_us),
            operator("aten::_foreach_add_", start + 650, 200),
        ]
        if passes:
            events.append(event("user_annotation", "dpscope::forward", start + 50, 200))
            events.append(event("user_annotation", "dpscope::backward", start + 300, 300))
    return events


@pytest.mark.parametrize(
    ("passes", "all_reduce_us", "communication_us", "hidden_us", "clipped_us"),
    [
        # 400-600, next to the convolution until 500: not into the optimizer
        (True, 700.0, 200.0, 100.0, 0.0),
        (True, 150.0, 150.0, 100.0, 0.0),  # 400-550: closed in time
        (False, 700.0, 600.0, 300.0, 100.0),  # no evidence: 400-1000 of its step, 100 beyond it
    ],
)
def test_an_all_reduce_ends_with_the_backward_that_waited_for_it(
    tmp_path: Path,
    passes: bool,
    all_reduce_us: float,
    communication_us: float,
    hidden_us: float,
    clipped_us: float,
) -> None:
    analysis = analyzed_events(tmp_path, two_steps(passes, all_reduce_us), backend="gloo")
    first = analysis.steps.iloc[0]
    assert first["communication_us"] == communication_us
    assert first["hidden_us"] == hidden_us
    assert first["clipped_us"] == clipped_us
    assert analysis.collectives["duration_us"].iloc[0] == communication_us + clipped_us


def copied_out(start_us: float) -> Event:
    return operator("torch.distributed.ddp.reducer::copy_bucket_to_grad", start_us, 5, tid=2)


@pytest.mark.parametrize("passes", [True, False])
def test_an_only_all_reduce_ends_before_its_first_gradient_is_copied(
    tmp_path: Path, passes: bool
) -> None:
    """Copies at 560 and 570 of the first step, whose range closes at 1100."""
    events = [*two_steps(passes), copied_out(1560.0), copied_out(1570.0)]
    if not passes:  # DDP without dpscope's ranges
        events.append(event("user_annotation", "DistributedDataParallel.forward", 1050.0, 100))
        events += [
            event("user_annotation", "Optimizer.step#SGD.step", start + 650.0, 100)
            for start in (1000.0, 2000.0)
        ]
    analysis = analyzed_events(tmp_path, events, backend="gloo")
    assert analysis.collectives["duration_us"].iloc[0] == 160.0  # 400-560
    assert analysis.steps["hidden_us"].iloc[0] == 100.0


@pytest.mark.parametrize("second_us", [1450.0, 1565.0])  # before the first copy, or taken up later
def test_a_copy_ends_neither_of_two_buckets(tmp_path: Path, second_us: float) -> None:
    events = [*two_steps(passes=True), copied_out(1560.0), copied_out(1595.0)]
    events.append(reduced(second_us, 1590.0 - second_us))
    analysis = analyzed_events(tmp_path, events, backend="gloo")
    assert analysis.collectives["duration_us"].tolist()[:2] == [200.0, 1590.0 - second_us]


@pytest.mark.parametrize("last_is_there", [False, True])
def test_sizes_stay_known_where_the_tracer_stopped_before_the_last_range_was_closed(
    tmp_path: Path, last_is_there: bool
) -> None:
    """Three all-reduces are requested; the last range, or what it reduced, is lost; each began
    within its operator.
    """
    events = []
    for number, (start, elements) in enumerate(((1000.0, 10), (2000.0, 20), (3000.0, 30))):
        shapes = {
            "Input Dims": [[[elements]], [], [], []],
            "Input type": ["TensorList", "", "", "Scalar"],
        }
        events += [step(number, start, 1000), operator("aten::mm", start + 300, 50, tid=2)]
        events.append(operator("c10d::allreduce_", start + 400, 20, tid=2, **shapes))
        if number < 2:
            events.append(reduced(start + 405, 100, **floats(elements)))
        elif last_is_there:
            events.append(reduced(start + 405, 100))
    table = analyzed_events(tmp_path, events, backend="gloo").collectives
    assert table["bytes"].tolist()[:2] == [40, 80]
    # after the trace's start, when they were created
    assert table["ready_us"].tolist()[:2] == [405.0, 1405.0]


def floats(*elements: int) -> dict[str, Any]:
    """The recorded shapes of float tensors."""
    return {"Input Dims": [[count] for count in elements], "Input type": ["float"] * len(elements)}


def test_a_reduce_scatter_moves_as_much_as_the_all_reduce_that_gloo_performs(
    tmp_path: Path,
) -> None:
    """Two ranks: 2 MB in, 1 MB out, 100 us. nccl-tests' factor of an all-reduce of two ranks is 1,
    of a reduce-scatter 1/2.
    """
    for rank, duration_us in ((0, 150.0), (1, 100.0)):
        events = [
            step(1, 1000.0, 1000),
            operator("c10d::_reduce_scatter_base_", 1100.0, 10, **floats(250_000, 500_000)),
            reduced(1105.0, duration_us, **floats(500_000)),
            operator("c10d::allreduce_", 1400.0, 10, **floats(100)),
            reduced(1405.0, 50, **floats(100)),
        ]
        table = analyzed_events(tmp_path, events, rank, backend="gloo").collectives
    scattered = table[table["kind"] == "reduce_scatter"]
    assert scattered["moved_as"].tolist() == ["all_reduce"] * 2
    assert scattered["bytes"].tolist() == [2_000_000] * 2
    assert scattered["algbw_gb_per_s"].tolist() == pytest.approx([20.0] * 2)
    assert scattered["busbw_gb_per_s"].tolist() == pytest.approx([20.0] * 2)
    assert (table.loc[table["kind"] == "all_reduce", "moved_as"] == "all_reduce").all()


def test_a_range_is_no_operator_s_where_another_began_in_it_too(tmp_path: Path) -> None:
    """Two operators and three ranges, two of them within the first operator: when the first of
    these was created is unknown. The second overlaps it on its thread, so that it was created at
    its start; the third began alone in the second operator.
    """
    events = [step(1, 1000, 1000), operator("aten::mm", 1010, 20)]
    for start in (1100.0, 1300.0):
        events.append(operator("c10d::allreduce_", start, 100))
    for start in (1110.0, 1150.0, 1310.0):
        events.append(reduced(start, 200.0))
    found = analyzed_events(tmp_path, events, backend="gloo").collectives
    assert found["ready_us"].isna().tolist() == [True, False, False]
    assert found["ready_us"].tolist()[1:] == [150.0, 310.0]
