"""What dpscope does on devices, on the double of torch.cuda: run as a separate process, which
records what happened.

    python -m tests.helpers.device_scenarios OUT

OUT/results.json: by scenario its calls, each (what, device, ...), and the numbers that came out;
`executed`: dpscope's lines.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from coverage import Coverage

from tests.helpers.nvml_records import TwoGpuNvml
from tests.helpers.paths import ROOT, USER_MODELS
from tests.helpers.recorded_group import DoubleDataParallel, DoubleDdp, RecordedGroup
from tests.helpers.recording_device import OnRecordingDevices, RecordingDevices, install

# the first two in another order than NVML's, which does not know the others
UUIDS = ("bbbb", "aaaa", "cccc", "dddd")
STEP_US = 125_000.0  # a forward's loss
PIECE_US = 100.0  # a product of matrices
BYTE_US = 1 / 1000  # a collective: 10 us and 1 GB/s
DEVICES = RecordingDevices(count=4, uuids=UUIDS)
GROUP = RecordedGroup(DEVICES, rank=1, world_size=2, script=lambda size: 10 + size * BYTE_US)


def _place(rank: int, size: int, report: Callable[[str], None] = lambda state: None) -> Any:
    from dpscope.launch.jobs.worker_process import TorchrunPlace

    return TorchrunPlace(
        rank=rank, local_rank=rank, world_size=size, local_world_size=size, node=0, report=report
    )


def passes(strategy: str, out: Path, devices: int = 2) -> dict[str, Any]:
    """One process of a cell from its start to its end: rank 1 of two under DDP, whose device is
    1.
    """
    from dpscope.launch.jobs.worker_process import leave_group
    from dpscope.launch.measuring.assigned_cell import AssignedCell
    from dpscope.launch.measuring.cell import run_cell
    from dpscope.launch.planning.run_config import load_config
    from dpscope.profiling.records.run import Cell
    from dpscope.profiling.store.files import read_json
    from dpscope.profiling.store.folders import RunFolder

    cell = Cell(strategy=strategy, devices=devices, batch_size=2)  # type: ignore[arg-type]
    config = load_config(
        None, {"model": "tiny_models:tiny", "steps": 3, "traced_steps": 1, "samples": 64}
    )
    folder = RunFolder(out).repeat(cell, 0)
    job = AssignedCell(config=config, cell=cell, repeat=0, kind="cuda", threads=1, folder=folder)
    folder.path.mkdir(parents=True)
    passes: list[str] = []

    def report(state: str) -> None:
        passes.append(state)
        DEVICES.note(f"pass: {state}")

    DEVICES.used_bytes = [1000, 2000, 3000, 4000]
    place = _place(*((1, 2) if strategy == "ddp" else (0, 1)), report)
    run_cell(job, place)
    leave_group()
    samples = folder.samples(folder.ranks())
    counters = folder.counters_path(place.node, place.rank)
    return {
        "rank": json.loads(folder.rank_path(place.node, place.rank).read_bytes()),
        "passes": passes,
        "samples": [
            list(row) for row in zip(samples["measuring_pass"], samples["step_us"], strict=True)
        ],
        "counted": len(read_json(counters, list)) if counters.exists() else 0,
        "traces": [path.name for path in folder.traces()],
    }


def calibration(out: Path, piece_us: float = PIECE_US, queueing_us: float = 0.0) -> dict[str, Any]:
    """Rank 1 of two times all-reduces of 4 and 8 KiB and their contention with products of
    matrices.
    """
    DEVICES.work_us["mm"] = piece_us
    GROUP.queueing_us = queueing_us
    from dpscope.launch.measuring.collective_timing import measure
    from dpscope.profiling.records.calibration import CalibrationSettings

    settings = CalibrationSettings(
        device="cuda", devices=(2,), collectives=("all_reduce",), iterations=3, warmup_iterations=1,
        chosen_sizes=(4096, 8192), timeout_s=900.0,
    )  # fmt: skip
    timed = measure(
        settings, _place(1, 2), lambda found: DEVICES.note("kept", None, len(found.points))
    )
    torch.distributed.destroy_process_group()
    return {
        "times_us": {point.size_bytes: point.times_us for point in timed.points},
        "contention": {
            name: getattr(contention, name)
            for contention in timed.contention
            for name in contention.__struct_fields__
            if name.endswith("_us")
        },
        "left_out": [(one.size_bytes, one.reason) for one in timed.left_out],
        "uuids": timed.device_uuids,
        "backend": timed.backend,
        "engine": timed.nccl_engine,
    }


def steps(out: Path) -> dict[str, Any]:
    """Steps on device 3 whose batches come after 20 ms and are computed in 60 ms or in 5, launched
    without waiting.
    """
    from dpscope.profiling.instruments.step_timer import time_block

    device = torch.device("cuda", 3)

    def timed(computing_us: float) -> dict[str, Any]:
        def step(batch_arrived: Callable[[], None]) -> int:
            DEVICES.host_us += 20_000
            batch_arrived()
            DEVICES.streams[3].queue(computing_us)
            return 4

        block, samples = time_block(step, 3, device, lambda: DEVICES.synchronise(device))
        times = {
            "step_us": [one.step_us for one in samples],
            "wait_us": [one.data_wait_us for one in samples],
        }
        return {**times, "block_wait_s": block.data_wait_s}

    return {"busy": timed(60_000.0), "idle": timed(5000.0)}


def attached(out: Path) -> dict[str, Any]:
    """A timed window of a script's own steps on device 2."""
    from dpscope.profiling.attached.windows import TimedWindow

    DEVICES.used_bytes[2] = 1000
    window = TimedWindow(2, torch.device("cuda", 2))
    window.begin()
    for _ in range(2):
        DEVICES.streams[2].queue(700.0)
        window.step_ended(None)  # type: ignore[arg-type]
    window.end()
    return {
        "step_us": window.durations_us,
        "memory": [(one.device, one.allocated_bytes) for one in window.memory],
    }


def failures(out: Path) -> dict[str, Any]:
    """What a process writes down where memory ran out, as torch, cuBLAS and NCCL say it, or a
    collective was given up.
    """
    from dpscope.launch.jobs.job_outcome import read_failures, write_failure

    gib = 1 << 30
    cublas = RuntimeError(
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    )
    watchdog = RuntimeError(
        "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
    )
    used: dict[str, tuple[Exception, list[int]]] = {
        "torch": (
            torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            [gib] * 4,
        ),
        "cublas_full": (cublas, [gib, 39 * gib, gib, gib]),
        "cublas_free": (cublas, [gib] * 4),
        "nccl": (
            RuntimeError("NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO)"),
            [39 * gib] * 4,
        ),
        "given_up": (watchdog, [gib] * 4),
    }
    notes = {}
    DEVICES.deaf = {0}  # answers nothing any more
    for name, (error, used_bytes) in used.items():
        folder = out / name
        folder.mkdir()
        DEVICES.used_bytes = used_bytes
        write_failure(folder, 0, 1, error)
        (note,) = read_failures(folder)
        notes[name] = (note.kind, note.message)
    DEVICES.deaf, DEVICES.used_bytes = set(), [0] * 4
    return {"notes": notes}


def given_up(out: Path) -> dict[str, Any]:
    """A collective that fails in the middle of a cell reaches the caller of the cell."""
    GROUP.failing = RuntimeError("Watchdog caught collective operation timeout")
    try:
        passes("ddp", out)
    except RuntimeError as error:
        return {"error": str(error)}
    finally:
        torch.distributed.destroy_process_group()
    return {"error": None}


def _four_present() -> None:
    from dpscope.launch.jobs import devices

    setattr(devices, "present_gpus", lambda: devices.PresentGpus(4, "NVML", "570.86"))  # noqa: B010 (a double)


def machine(out: Path) -> dict[str, Any]:
    """`doctor`'s checks, the devices of `--device`, the environment where NVML knows no GPU,
    generators' states.
    """
    from dpscope.launch.commands import doctor
    from dpscope.launch.jobs import devices as jobs_devices
    from dpscope.launch.jobs.all_reduce_check import _reduce
    from dpscope.launch.measuring.cell import precision_findings
    from dpscope.profiling.machine.environment import collect_environment, machine_findings

    DEVICES.peers = {(0, 1)}
    _four_present()
    checks = {
        "devices": doctor._devices(),
        "backends": doctor._backends(),
        "peer access": doctor._peer_access(),
    }
    setattr(torch.version, "hip", "6.4")  # noqa: B010 (typed as a constant)
    checks["driver"] = doctor._driver()
    setattr(torch.version, "hip", None)  # noqa: B010
    environment = collect_environment(None, on_gpus=True)
    DEVICES.built_for = ["sm_75", "sm_80", "sm_90a", "compute_120"]
    unsupported = doctor._devices()
    DEVICES.built_for = ["sm_70"]
    devices = tuple(torch.device("cuda", index) for index in range(2))
    reduced = ""
    try:
        _reduce("cuda", _place(1, 2))
    except Exception as error:  # the double moves no data, which the check must see
        reduced = str(error)
    torch.distributed.destroy_process_group()
    return {
        "checks": [(name, check.status, check.detail) for name, check in checks.items()],
        "devices": jobs_devices.resolve_devices("cuda").count,
        "unsupported": (unsupported.status, unsupported.detail),
        "names": [one.name for one in environment.accelerators],
        "findings": [one.code for one in machine_findings(environment, "cuda", 2)],
        "emulated": [one.message for one in precision_findings("bf16", devices)],
        "reduced": reduced,
    }


def planning(out: Path) -> dict[str, Any]:
    """What is planned and refused on GPUs, without touching one."""
    from dpscope.launch.measuring.calibration_settings import calibration_settings
    from dpscope.launch.workload.strategies import _further_arguments
    from dpscope.profiling.records.run import CellOptions
    from dpscope.profiling.store.errors import DpscopeError

    def refusal(do: Callable[[], object]) -> str:
        try:
            return f"nothing: {do()}"
        except DpscopeError as error:
            return str(error)

    _four_present()
    counts = calibration_settings(device="cuda").devices
    mixed = _further_arguments(
        CellOptions(ddp_args="mixed_precision=bf16"), torch.device("cuda", 0)
    )["mixed_precision"]
    DEVICES.count = 1
    refused = [refusal(lambda: calibration_settings(device="cuda"))]
    DEVICES.count = 4
    return {"counts": counts, "reduce_dtype": str(mixed.reduce_dtype), "refused": refused}


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "single": lambda out: passes("single", out, devices=1),
    "dp": lambda out: passes("dp", out),
    "ddp": lambda out: passes("ddp", out),
    "calibration": calibration,
    "contention": lambda out: calibration(out, piece_us=2.0),
    "slow_host": lambda out: calibration(out, queueing_us=3_000.0),
    "too_slow_host": lambda out: calibration(out, queueing_us=1_000_000.0),
    "steps": steps,
    "attached": attached,
    "failures": failures,
    "given_up": given_up,
    "machine": machine,
    "planning": planning,
}


class _Profile(torch.profiler.profile):
    """torch's own of the CPU: without a driver it would fill the log for every event of a
    device.
    """

    def __init__(self, activities: list[Any], **options: Any) -> None:
        DEVICES.note("profile", None, sorted(activity.name for activity in activities))
        super().__init__(activities=[torch.profiler.ProfilerActivity.CPU], **options)

    def start_trace(self) -> None:
        DEVICES.note("start_trace")
        super().start_trace()

    def stop_trace(self) -> None:
        DEVICES.note("stop_trace")
        super().stop_trace()


@contextmanager
def doubles_in_place() -> Iterator[None]:
    """torch.cuda, torch.distributed and NVML doubled, tensors on the host, and a host's clock that
    only work moves.
    """
    install(DEVICES)
    GROUP.install()
    from dpscope.launch.measuring import cell
    from dpscope.launch.workload import strategies
    from dpscope.profiling.instruments import trace_recorder

    DoubleDdp.double = DoubleDataParallel.double = DEVICES
    doubles: list[tuple[Any, str, Any]] = [
        (strategies, "DistributedDataParallel", DoubleDdp),
        (cell, "DistributedDataParallel", DoubleDdp),
        (strategies, "NamedDataParallel", DoubleDataParallel),
        (cell, "open_nvml", TwoGpuNvml),
        (cell, "time", SimpleNamespace(monotonic=lambda: DEVICES.host_us / 1e6, time=time.time)),
        (trace_recorder, "profile", _Profile),
    ]
    for module, name, double in doubles:
        setattr(module, name, double)
    DEVICES.work_us = {"cross_entropy": STEP_US}
    with OnRecordingDevices(DEVICES):
        yield


def main() -> None:
    """Run every scenario."""
    out = Path(sys.argv[1])
    os.environ["KINETO_LOG_LEVEL"] = "99"
    sys.path.insert(0, str(USER_MODELS))
    coverage = Coverage(
        data_file=None, config_file=False, include=[f"{ROOT}/launch/*", f"{ROOT}/profiling/*"]
    )
    results: dict[str, Any] = {}
    with coverage.collect(), doubles_in_place():
        for name, scenario in SCENARIOS.items():
            folder = out / name
            folder.mkdir()
            DEVICES.taken()
            result = scenario(folder)
            results[name] = {**result, "calls": DEVICES.taken()}
    executed = coverage.get_data()
    results["executed"] = {path: executed.lines(path) for path in executed.measured_files()}
    (out / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main()
