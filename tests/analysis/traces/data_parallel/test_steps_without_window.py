"""DataParallel on devices, where a step launched nothing that bounds it."""

from pathlib import Path

from dpscope.analysis.traces.ranks.trace_analysis import analyze_traces
from tests.helpers.made_traces import Event, event, launch, operator, step, write


def on(device: int, name: str, start: float, duration: float, correlation: int, category: str = "kernel") -> Event:
    args = {"device": device, "stream": 7, "correlation": correlation}
    return event(category, name, start, duration, pid=device, tid=7, args=args)


def test_a_step_whose_only_copy_outlasts_the_next_has_no_exposed_time(tmp_path: Path) -> None:
    """Step 1 broadcasts from 1,100 to 1,200; step 2 copies from 2,100 to 5,000, after step 3 ended at 3,200."""
    events = []
    for number in (1, 2, 3):
        begin = 1_000.0 * number
        events += [step(number, begin, 1_000), operator("Broadcast", begin + 1, 20)]
        events += [operator("nn.DataParallel.forward", begin + 1, 300)]
        events += [launch(10 * number + device, begin + 5 + device) for device in (0, 1)]
    for device in (0, 1):
        events += [
            on(device, "ncclDevKernel_Broadcast_RING_LL", 1_100, 100, 10 + device),
            on(device, "Memcpy HtoD (Pinned -> Device)", 2_100, 2_900, 20 + device, "gpu_memcpy"),
            on(device, "gemm", 3_100, 100, 30 + device),
        ]
    write(tmp_path, events, 0, 1)
    phases = analyze_traces([tmp_path]).dp_phases
    first, second = phases[phases["step"] == 1], phases[phases["step"] == 2]
    assert second["time_us"].tolist() == [2_900, 2_900]
    assert second["exposed_us"].isna().all()
    assert first["exposed_us"].tolist() == [100, 100]
