"""A copy from one device to another occupies both, whichever of them records it."""

from pathlib import Path

import pytest

from tests.helpers.made_traces import Event, analyzed_events, event, launch, on_device, step

COPY = "Memcpy PtoP (Device -> Device)"


def copy(
    correlation: int, start: float, duration: float, ends: tuple[int, int], recorded_on: int
) -> Event:
    source, target = ends
    args = {
        "fromDevice": source,
        "inDevice": recorded_on,
        "toDevice": target,
        "correlation": correlation,
        "bytes": 8,
    }
    return event(
        "gpu_memcpy", COPY, start, duration, pid=recorded_on, tid=7, args=args | {"stream": 7}
    )


def kernel(correlation: int, start: float, duration: float, device: int) -> Event:
    return on_device("gemm", start, duration, correlation, device=device)


def steps_of(folder: Path, recorded_on: str) -> list[Event]:
    """Two steps of 5 ms: 3,900 us of kernels on device 0, 600 us of parameters to device 1, 495 us
    of gradients back.

    Device 1 computes for 2,000 us; device 0 is idle for 5 us.
    """
    events = []
    for number in range(2):
        begin, first = 5000.0 * number, 10 * number
        out, back = ((0, 1), (1, 0)) if recorded_on == "source" else ((1, 0), (0, 1))
        events += [step(number, begin, 5000)]
        events += [launch(first + one, begin + one) for one in range(1, 6)]
        events += [
            kernel(first + 1, begin + 5, 100, 0),
            copy(first + 2, begin + 105, 600, (0, 1), out[0]),
            kernel(first + 3, begin + 705, 3799, 0),
            kernel(first + 4, begin + 705, 2000, 1),
            copy(first + 5, begin + 4505, 495, (1, 0), back[0]),
        ]
    return events


@pytest.mark.parametrize("recorded_on", ["source", "target"])
def test_both_ends_of_a_copy_communicate(tmp_path: Path, recorded_on: str) -> None:
    analysis = analyzed_events(tmp_path, steps_of(tmp_path, recorded_on), world_size=1)
    whole = analysis.steps[~analysis.steps["partial_window"]]
    values = (
        whole[["device", "compute_us", "communication_us", "exposed_us", "idle_us"]]
        .to_numpy()
        .tolist()
    )
    assert values == [[0, 3899, 1095, 1095, 6], [1, 2000, 1095, 1095, 1905]]
    assert analysis.ledger is not None
    assert (
        analysis.ledger.critical_device,
        analysis.ledger.exposed_us,
        analysis.ledger.idle_us,
    ) == (0, 1095, 6)
    # What was copied counts once, on the device that recorded it.
    assert analysis.copies["bytes"].tolist() == [8] * 4
