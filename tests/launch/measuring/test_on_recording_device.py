"""Code for devices, run on a double of torch.cuda: the order and the devices of its calls, and
times by a scripted clock.

One process runs every scenario of tests/helpers/device_scenarios.py; the double has 4 devices.
DDP's process is rank 1 of two.
"""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.helpers.paths import ROOT

pytestmark = pytest.mark.process
Call = tuple[Any, ...]
STEP_US = 125_000.0
WARM_UP = 12  # steps of 125 ms: 11, and one more until 1.5 s have passed


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("devices")
    command = [sys.executable, "-m", "tests.helpers.device_scenarios", str(folder)]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    content: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return content


def calls(results: dict[str, Any], scenario: str, *names: str) -> list[Call]:
    """A scenario's calls; only those of `names`, if there are any."""
    return [tuple(call) for call in results[scenario]["calls"] if not names or call[0] in names]


def in_pass(results: dict[str, Any], scenario: str, name: str) -> list[Call]:
    """The calls from the start of one pass to that of the next."""
    found = calls(results, scenario)
    began = found.index((f"pass: {name}", None)) + 1
    rest = [call[0] for call in found[began:]]
    ends = next(index for index, what in enumerate(rest) if what.startswith("pass: "))
    return found[began : began + ends]


def test_a_process_sets_its_devices_before_it_joins_and_uses_no_other(
    results: dict[str, Any],
) -> None:
    assert calls(results, "ddp", "set_device", "init_process_group", "ddp") == [
        ("set_device", 1), ("init_process_group", 1, "nccl", 720.0), ("ddp", 1),
    ]  # fmt: skip
    assert {call[1] for call in calls(results, "ddp")} <= {1, None}
    assert {call[1] for call in calls(results, "single")} <= {0, None}
    assert calls(results, "dp", "set_device", "dp") == [("set_device", 0), ("dp", None, [0, 1])]
    assert calls(results, "single", "init_process_group", "barrier") == []


def test_collectives_have_the_jobs_limit_until_all_processes_are_warm(
    results: dict[str, Any],
) -> None:
    passes = ("pass: timed", "pass: warm-up", "pass: traced")
    assert calls(results, "ddp", "init_process_group", "set_timeout", *passes) == [
        ("init_process_group", 1, "nccl", 720.0), ("pass: warm-up", None), ("set_timeout", None, 120.0),
        ("pass: timed", None), ("pass: traced", None),
    ]  # fmt: skip
    assert calls(results, "single", "set_timeout") == []


WAITED: dict[str, list[Call]] = {
    "single": [("synchronize", 0)],
    "dp": [("synchronize", 0), ("synchronize", 1)],
    "ddp": [("synchronize", 1), ("barrier", None), ("synchronize", 1)],
}


@pytest.mark.parametrize("strategy", ["single", "dp", "ddp"])
def test_timed_steps_lie_between_two_waits_for_all_devices_and_processes(
    results: dict[str, Any], strategy: str
) -> None:
    first = 1 if strategy == "ddp" else 0
    moved = [call for call in in_pass(results, strategy, "warm-up") if call[0] == "to"]
    assert len(moved) == 2 * WARM_UP  # images and labels
    mark: Call = ("record", first, "default")
    found = in_pass(results, strategy, "timed")
    peaks = [
        ("reset_peak", device)
        for _, device in dict.fromkeys(WAITED[strategy])
        if device is not None
    ]
    steps: list[Call] = [mark]
    for _ in range(3):
        steps += [
            mark,
            ("to", first),
            ("to", first),
            *([("bucket", None, 1072)] if strategy == "ddp" else []),
            mark,
        ]
    memory = [
        (name, device)
        for _, device in peaks
        for name in ("max_memory_allocated", "max_memory_reserved")
    ]
    assert found == [*peaks, *WAITED[strategy], *steps, *WAITED[strategy], *memory]
    assert results[strategy]["samples"] == [["timed", STEP_US]] * 3 + [["traced", STEP_US]] * 2


@pytest.mark.parametrize("strategy", ["single", "dp", "ddp"])
def test_devices_finish_before_recording(results: dict[str, Any], strategy: str) -> None:
    """Two warm-up steps under the tracer, a wait, two recorded steps, a wait: no work of a warm-up
    step is recorded.
    """
    first = 1 if strategy == "ddp" else 0
    looked_at = ("profile", "start_trace", "stop_trace", "synchronize", "barrier", "to")
    order = [call for call in in_pass(results, strategy, "traced") if call[0] in looked_at]
    step = [("to", first), ("to", first)]
    waited = WAITED[strategy]
    assert order == [
        ("profile", None, ["CPU", "CUDA"]), *waited, *step, *step, *waited, ("start_trace", None), *step, *step,
        ("stop_trace", None), *waited,
    ]  # fmt: skip


def test_memory_and_state_are_those_of_the_devices_that_ran(results: dict[str, Any]) -> None:
    """Half of 1, 2 kB; NVML lists the first two devices in the other order, and the UUID
    distinguishes them.
    """
    memory = {
        name: [tuple(one.values()) for one in results[name]["rank"]["memory"]] for name in WAITED
    }
    assert memory == {
        "single": [(0, 500, 1000)],
        "dp": [(0, 500, 1000), (1, 1000, 2000)],
        "ddp": [(1, 1000, 2000)],
    }
    for moment in ("device_states_before", "device_states_after"):
        states = {name: results[name]["rank"][moment] for name in memory}
        # one per device
        assert all(len(one) == len({state["index"] for state in one}) for one in states.values())
        hot = {
            name: [(one["index"], one["temperature_c"]) for one in found]
            for name, found in states.items()
        }
        assert hot == {"single": [(0, 83)], "dp": [(0, 83), (1, 41)], "ddp": [(1, 41)]}


def test_the_saved_files_of_each_strategy(results: dict[str, Any]) -> None:
    assert {name: results[name]["counted"] for name in ("single", "dp", "ddp")} == {
        "single": 0,
        "dp": 0,
        "ddp": 2,
    }
    traces = {name: results[name]["traces"] for name in ("single", "ddp")}
    assert traces == {"single": ["0_0.pt.trace.json.gz"], "ddp": ["0_1.pt.trace.json.gz"]}
    assert results["ddp"]["passes"] == [
        "warm-up",
        "timed",
        "device states",
        "traced",
        "counters",
        "saving",
    ]
    engines = {name: results[name]["rank"]["nccl_engine"] for name in ("single", "ddp")}
    assert engines == {"single": None, "ddp": "FakeProcessGroup"}
    assert calls(results, "ddp")[-2:] == [("barrier", None), ("destroy_process_group", None)]


def test_collectives_are_timed_on_the_device_after_a_small_one(results: dict[str, Any]) -> None:
    """10 us and 1 GB/s: 14.096 and 18.192 us, without the host's time; three iterations in three
    shares.
    """
    found = results["calibration"]
    assert {size: pytest.approx(times) for size, times in found["times_us"].items()} == {
        "4096": [14.096] * 3, "8192": [18.192] * 3,
    }  # fmt: skip
    assert (found["backend"], found["engine"]) == ("fake", "FakeProcessGroup")
    assert found["uuids"] == ["bbbb", "aaaa"]
    timed = calls(
        results,
        "calibration",
        "init_process_group",
        "set_device",
        "barrier",
        "synchronize",
        "all_reduce",
        "record",
    )
    assert timed[:2] == [("set_device", 1), ("init_process_group", 1, "nccl", 720.0)]
    assert calls(results, "calibration", "new_group") == [("new_group", None, [0, 1], 120.0)]
    began = timed.index(("barrier", None))
    one = [
        ("all_reduce", 1, 4),
        ("record", 1, "default"),
        ("all_reduce", 1, 4096),
        ("record", 1, "default"),
    ]
    asleep = [("barrier", None), ("synchronize", 1), ("record", 1, "default")]
    assert timed[began : began + 12] == [*asleep, *one, *one, ("synchronize", 1)]


def test_a_queue_that_ran_dry_is_timed_again_after_a_longer_sleep(results: dict[str, Any]) -> None:
    """A host that takes 3 ms for each call wakes up later than a GPU that slept 1 ms a call: those
    times would hold its delay.

    Of one that takes a second no sleep is long enough, and nothing is stored.
    """
    quick, slow, too_slow = (
        results[name] for name in ("calibration", "slow_host", "too_slow_host")
    )
    for size, times in slow["times_us"].items():
        assert times == pytest.approx(quick["times_us"][size])
    assert slow["contention"]["alone_us"] == pytest.approx(quick["contention"]["alone_us"])
    assert slow["left_out"] == []
    assert (too_slow["times_us"], too_slow["contention"]) == ({}, {})
    assert [size for size, _ in too_slow["left_out"]] == [4096, 8192]
    assert all(
        "the host took longer to queue the calls than the GPU slept" in why
        for _, why in too_slow["left_out"]
    )


def test_contention_by_hand(results: dict[str, Any]) -> None:
    """Two at once use the link in turn: 36.384 us. During compute one takes 18.192 us, less than a
    piece of 100: unknown.
    """
    found = {
        name: pytest.approx(values) for name, values in results["calibration"]["contention"].items()
    }
    assert found == {
        "alone_us": [18.192] * 3, "two_in_flight_us": [36.384] * 3, "beside_compute_us": [18.192] * 3,
        "compute_alone_us": [100.0] * 3, "compute_beside_us": [100.0] * 3,
    }  # fmt: skip
    # Pieces of 2 us: of 20, which take 40 us, (40 - 18.192) / 2 run after the collective, the
    # others within its 18.192 us.
    assert results["contention"]["contention"]["compute_beside_us"] == pytest.approx([2.0] * 3)
    marks = calls(results, "calibration", "kept", "stream", "record")
    aside = [call for call in marks if "aside" in call or call[0] != "record"]
    # The collectives are kept before; a warm-up, three iterations.
    assert aside == [("kept", None, 2), *[("stream", 1), ("record", 1, "aside")] * 4]


def test_steps_and_waits_are_read_after_a_wait_for_the_device(results: dict[str, Any]) -> None:
    """The loader takes 20 ms: a device busy for 60 ms a step does not notice, one busy for 5 ms
    waits the other 15.
    """
    assert results["steps"]["busy"] == {
        "step_us": [80e3, 60e3, 60e3], "wait_us": [20e3, 0.0, 0.0], "block_wait_s": pytest.approx(0.02),
    }  # fmt: skip
    assert results["steps"]["idle"] == {
        "step_us": [25e3, 20e3, 20e3], "wait_us": [20e3, 15e3, 15e3], "block_wait_s": pytest.approx(0.05),
    }  # fmt: skip
    assert {call[1] for call in calls(results, "steps")} == {3}
    assert results["attached"]["step_us"] == [700.0, 700.0]
    assert results["attached"]["memory"] == [[2, 500]]
    assert calls(results, "attached", "reset_peak") == []  # the statistics are the script's
    assert {call[1] for call in calls(results, "attached")} == {2}


def test_out_of_memory_is_distinguished_from_other_failures(results: dict[str, Any]) -> None:
    """A device that has failed does not hide the one that is full."""
    kinds = {name: note[0] for name, note in results["failures"]["notes"].items()}
    assert kinds == {
        "torch": "out_of_memory", "cublas_full": "out_of_memory", "cublas_free": "crashed", "nccl": "out_of_memory",
        "given_up": "crashed",
    }  # fmt: skip
    assert results["failures"]["notes"]["nccl"][1].startswith(
        "GPU memory over 90% full: RuntimeError: NCCL error"
    )


def test_an_aborted_collective_ends_the_cell_with_its_message(results: dict[str, Any]) -> None:
    assert results["given_up"]["error"] == "Watchdog caught collective operation timeout"
    last = calls(results, "given_up")[-4:]  # in warm-up, after the wait for all
    assert last == [
        ("barrier", None),
        ("synchronize", 1),
        ("tensor", 1),
        ("destroy_process_group", None),
    ]


def test_torch_describes_the_machine_where_nvml_finds_no_gpu(results: dict[str, Any]) -> None:
    found = results["machine"]
    assert [(name, status) for name, status, _ in found["checks"]] == [
        ("devices", "ok"), ("backends", "ok"), ("peer access", "warning"), ("driver", "ok"),
    ]  # fmt: skip
    assert found["checks"][2][2].startswith("1 of 12 ordered pairs have none")
    assert "AMD's driver" in found["checks"][3][2]
    status, detail = found["unsupported"]
    assert status == "failed"
    assert "has no kernels for GPU 0, 1, 2, 3 (NVIDIA A100-SXM4-40GB, 7.0): " in detail
    assert ": it is built for sm_75, sm_80, sm_90a, compute_120; install a torch that is" in detail
    assert (found["devices"], found["names"]) == (4, ["NVIDIA A100-SXM4-40GB"] * 4)
    assert found["findings"] == ["device_state_unknown"]
    # (7, 0) here
    assert found["emulated"] == [
        "NVIDIA A100-SXM4-40GB has no units for bf16: it is emulated there."
    ]


def test_doctors_all_reduce_notices_a_wrong_sum(results: dict[str, Any]) -> None:
    wrong = "an all-reduce over 2 processes gave 2, not 3, in 1048576 of 1048576 elements"
    assert results["machine"]["reduced"] == wrong
    order = [
        call[0]
        for call in calls(
            results, "machine", "set_device", "init_process_group", "all_reduce", "synchronize"
        )
    ]
    assert order == ["set_device", "init_process_group", "all_reduce", "synchronize", "synchronize"]


def test_supported_settings_are_planned_and_others_refused(results: dict[str, Any]) -> None:
    assert results["planning"]["counts"] == [2, 4]
    assert results["planning"]["reduce_dtype"] == "torch.bfloat16"
    (one,) = results["planning"]["refused"]
    assert one.startswith("--device cuda: one GPU is visible and a collective needs two")


def test_every_line_that_calls_torch_cuda_is_executed(results: dict[str, Any]) -> None:
    """But for the wait after the warm-up of calibrated collectives, which is not run here."""
    called, missing = 0, []
    for path in (path for top in ("launch", "profiling") for path in (ROOT / top).rglob("*.py")):
        executed = set(results["executed"].get(str(path), ()))
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if re.search(r"torch\.cuda\.(?!is_)\w+\(", line):
                called += 1
                missing += [] if number in executed else [line.strip()]
    assert called > 30
    assert missing == ["torch.cuda.synchronize(subgroup.device)"]
