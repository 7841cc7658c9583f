"""dpscope itself checked on GPUs, the most valuable first: `make gpu`. Each test has a time limit
and reports why it is skipped.

Measured values are in verdicts.jsonl and in the JUnit file as properties of the test.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dpscope.launch.jobs.all_reduce_check import all_reduce_once
from dpscope.launch.jobs.job_outcome import JobOutcome
from dpscope.launch.jobs.job_queue import attend_job
from dpscope.launch.jobs.stop_request import StopRequest
from dpscope.launch.jobs.torchrun import Job
from dpscope.profiling.instruments.step_timer import BatchArrived
from dpscope.profiling.machine.environment import (
    collect_environment,
    torch_device_states,
    usable_device_states,
)
from dpscope.profiling.machine.interconnect import interconnect
from dpscope.profiling.machine.nvml import NvmlRecorder, bare_uuid, open_nvml
from dpscope.profiling.records.run import Cell
from dpscope.profiling.store.files import read_json
from dpscope.profiling.store.folders import JobFolder, RepeatFolder, RunFolder
from tests.gpu import ranks
from tests.helpers import gpu_checks
from tests.helpers.gpu_bench import CALIBRATION, LATE_RANK, OPTIONS, PATIENCE, Bench, late_ranks
from tests.helpers.known import known
from tests.helpers.nvml_records import ReplayedNvml

Record = Callable[[str, object], None]

MIB = 1 << 20


def repeat_of(run: Path, cell: Cell) -> RepeatFolder:
    """The first repeat of a cell."""
    return RunFolder(run).repeat(cell, 0)


def single(batch_size: int) -> Cell:
    return Cell(strategy="single", devices=1, batch_size=batch_size)


@pytest.mark.gpu(expected_s=40, limit_s=150)
def test_versions_driver_and_devices(bench: Bench, record_property: Record) -> None:
    """doctor finds nothing that fails; the recorded GPUs are torch's; NVML's answers are the same
    when replayed.
    """
    ended = bench.dpscope("doctor", limit_s=140)
    (bench.folder / "doctor.txt").write_text(ended.stdout)
    environment = collect_environment(open_nvml(), on_gpus=True)
    for name in ("torch_version", "cuda_version", "nccl_version", "driver_version"):
        record_property(name, getattr(environment, name))
    uuids = [str(torch.cuda.get_device_properties(index).uuid) for index in range(bench.gpus)]
    assert [bare_uuid(one.uuid or "") for one in environment.accelerators] == [
        bare_uuid(uuid) for uuid in uuids
    ]
    record_property("devices", [one.name for one in environment.accelerators])
    assert ended.returncode == 0, ended.stdout
    nvml = open_nvml()
    if nvml is None:
        pytest.skip("NVML does not answer: no record of it can be made")
    path = bench.folder / "nvml.json"
    recorder = NvmlRecorder(nvml)
    recorded = usable_device_states(recorder, (os.getpid(),)), interconnect(recorder, uuids)
    path.write_text(recorder.to_json())
    replay = ReplayedNvml(path)
    assert (usable_device_states(replay, (os.getpid(),)), interconnect(replay, uuids)) == recorded


@pytest.mark.gpu(expected_s=25, limit_s=300)
def test_an_all_reduce_over_all_gpus(bench: Bench, record_property: Record) -> None:
    """NCCL sums exactly; `all_reduce_once` raises otherwise."""
    record_property("engine", all_reduce_once("cuda", bench.gpus, Console(stderr=True)))


@pytest.mark.gpu(expected_s=10, limit_s=60)
@pytest.mark.parametrize(
    ("side", "products"), [(4096, 20), (32, 400)], ids=["large matmuls", "launch-bound"]
)
def test_device_events_agree_with_the_wall_clock(
    side: int, products: int, record_property: Record
) -> None:
    device = torch.device("cuda", 0)
    matrix = torch.ones(side, side, device=device)

    def step(batch_arrived: BatchArrived) -> int:
        batch_arrived()
        for _ in range(products):
            torch.mm(matrix, matrix)
        return 1

    difference = gpu_checks.events_over_wall(
        step, 50, device, lambda: torch.cuda.synchronize(device)
    )
    record_property("difference", difference)
    assert difference <= 0.02


@pytest.mark.gpu(expected_s=90, limit_s=250)
def test_a_single_cell_against_a_plain_script(
    bench: Bench, single_run: Path, record_property: Record
) -> None:
    """The same model without dpscope, in its own process: step times within 2%, peak memory within
    1%.
    """
    analysis = bench.analysis(single_run)
    assert gpu_checks.problems(analysis) == []
    cell = next(row for row in analysis["cells"] if row["batch_size"] == 512)
    command = [sys.executable, "-m", "tests.gpu.plain_script", "cuda:0", "512", "50"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    plain = json.loads(ended.stdout)
    record_property("step_us", [cell["step_us"], plain["step_us"]])
    record_property("peak_bytes", [cell["peak_allocated_bytes"], plain["peak_bytes"]])
    assert cell["step_us"] == pytest.approx(plain["step_us"], rel=0.02)
    assert cell["peak_allocated_bytes"] == pytest.approx(plain["peak_bytes"], rel=0.01)


@pytest.mark.gpu(expected_s=20, limit_s=200)
def test_what_the_tracer_records_and_costs(
    bench: Bench, single_run: Path, record_property: Record
) -> None:
    """Kernels with their launches; busy time as added up by hand; traced over untraced steps at
    batches 32 and 512.
    """
    analysis = bench.analysis(single_run)
    costs = {row["batch_size"]: row["tracer_cost"] for row in analysis["cells"]}
    record_property("traced_over_untraced", costs)
    (path,) = repeat_of(single_run, single(512)).traces()
    record_property("trace", str(path))
    events = gpu_checks.trace_events(path)
    launched = known(gpu_checks.launched_share(events))
    busy = known(gpu_checks.busy_difference(analysis, single(512).name, events))
    record_property("launched_share", launched)
    record_property("busy_difference", busy)
    assert launched >= 0.999
    assert busy <= 0.01
    assert known(gpu_checks.step_difference(analysis, single(512).name)) <= 0.001
    # at batch 32 the host launches, and the tracer slows the host
    assert costs[512] <= 1.5 * PATIENCE


@pytest.mark.gpu(least=2, expected_s=90, limit_s=300)
def test_ddp_on_two_gpus(bench: Bench, ddp_run: Path, record_property: Record) -> None:
    """All-reduces move the gradients' bytes in DDP's buckets, are numbered and matched; their span
    agrees with DDP's counters.
    """
    analysis = bench.analysis(ddp_run)
    cell = Cell(strategy="ddp", devices=2, batch_size=512)
    measured = repeat_of(ddp_run, cell)
    (first, *_) = measured.ranks()
    counters = measured.counters(first.node, first.rank)
    record_property("bucket_bytes", counters[-1].bucket_bytes)
    record_property("trace", str(measured.traces()[0]))
    found = gpu_checks.ddp_problems(analysis, cell.name, first.model.gradient_bytes, counters)
    assert [*gpu_checks.problems(analysis), *found] == []


@pytest.mark.gpu(least=2, expected_s=120, limit_s=300)
def test_overlap_by_nccl_engine(bench: Bench, record_property: Record) -> None:
    """What each of torch's engines hides is recorded; with `--overlap off` nothing is hidden."""
    analysis = bench.analysis(bench.run("overlap"))
    shares = gpu_checks.hidden_shares(analysis)
    record_property("hidden_shares", shares)
    assert gpu_checks.problems(analysis) == []
    assert len(shares) == 4
    assert all(share <= 0.05 for cell, share in shares.items() if "overlap-off" in cell)


@pytest.mark.gpu(least=2, expected_s=60, limit_s=250)
def test_data_parallel_on_two_gpus(bench: Bench, record_property: Record) -> None:
    """Broadcasts and reduces are as many on each device; peer copies have their devices and
    bytes.
    """
    run = bench.run("data_parallel")
    (path,) = repeat_of(run, Cell(strategy="dp", devices=2, batch_size=512)).traces()
    events = gpu_checks.trace_events(path)
    kernels = {kind: gpu_checks.nccl_kernels(events, kind) for kind in ("Broadcast", "Reduce")}
    copies = gpu_checks.peer_copies(events)
    record_property("trace", str(path))
    record_property("nccl_kernels", {kind: dict(counts) for kind, counts in kernels.items()})
    record_property(
        "peer_copies", {f"{source} to {target}": size for (source, target), size in copies.items()}
    )
    assert gpu_checks.problems(bench.analysis(run)) == []
    for counts in kernels.values():
        assert len(set(counts.values())) <= 1, "as many on each device"
    assert copies.get((0, 1), 0) > 0  # inputs, and parameters where NCCL is not used
    assert copies.get((1, 0), 0) >= 512 * 10 * 4  # the outputs of a step


@pytest.mark.gpu(least=2, expected_s=60, limit_s=200)
def test_a_calibrated_all_reduce_against_device_events(
    bench: Bench, record_property: Record
) -> None:
    """64 MiB over two GPUs: the calibration's median against the mean of 50 calls, within 10%."""
    size = 64 * MIB
    calibration = bench.calibration("calibration", CALIBRATION, limit_s=150)
    (point,) = [one for one in calibration.points if one.size_bytes == size]
    outcome = torchrun(bench.folder / "all_reduce", 2, "all_reduce", "cuda", size)
    assert outcome.status == "ok", outcome.message
    timed = read_json(JobFolder(bench.folder / "all_reduce").result_path, ranks.Timed)
    calibrated_us = statistics.median(point.times_us)
    record_property("all_reduce_us", [calibrated_us, timed.call_us])
    assert calibrated_us == pytest.approx(timed.call_us, rel=0.1)


def torchrun(folder: Path, processes: int, what: str, kind: str, size_bytes: int = 0) -> JobOutcome:
    """A job of `tests.gpu.ranks` in a folder."""
    folder.mkdir(parents=True)
    stop, worker = (
        StopRequest(),
        ("-m", "tests.gpu.ranks", str(folder), what, kind, str(size_bytes)),
    )
    job = Job(name=what, program=worker, folder=JobFolder(folder), threads=1, processes=processes)
    with stop.listening():
        return attend_job(job, ranks.JOB_S, what, stop, Console(stderr=True))


@pytest.mark.gpu(expected_s=10, limit_s=60)
def test_nvml_under_load_against_idle(bench: Bench, record_property: Record) -> None:
    """Two seconds of matmuls: the GPU draws more power and its clock is no lower than when idle."""
    device, nvml = torch.device("cuda", 0), open_nvml()
    if bench.virtual:
        pytest.skip("the power and clock of a virtual GPU are constant")
    look = partial(
        torch_device_states, nvml, None, {0: str(torch.cuda.get_device_properties(0).uuid)}
    )
    torch.cuda.synchronize(device)
    time.sleep(2.0)
    idle = look()
    if not idle:
        pytest.skip("NVML does not know this device by its UUID")
    matrix = torch.ones(4096, 4096, device=device)

    def work() -> None:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize(device)

    (loaded,) = gpu_checks.state_during(work, look, 2.0)
    for name in ("sm_clock_mhz", "power_w", "temperature_c", "throttle_reasons"):
        record_property(name, [getattr(idle[0], name), getattr(loaded, name)])
    assert known(loaded.power_w) > known(idle[0].power_w)
    assert (loaded.sm_clock_mhz or 0) >= (idle[0].sm_clock_mhz or 0)


@pytest.mark.gpu(expected_s=40, limit_s=150)
def test_out_of_memory_on_one_rank(bench: Bench, record_property: Record) -> None:
    """Its peer waits in a collective: the job ends within 60 s, is reported as what it is, and the
    memory is free again.
    """
    last = min(1, bench.gpus - 1)
    free_before = torch.cuda.mem_get_info(last)[0]
    began_s = time.monotonic()
    outcome = torchrun(bench.folder / "out_of_memory", 2, "memory", "cuda")
    took_s = time.monotonic() - began_s
    lost_bytes = free_before - torch.cuda.mem_get_info(last)[0]
    record_property("over_after_s", round(took_s, 1))
    record_property("lost_mib", lost_bytes / MIB)
    assert outcome.status == "out_of_memory", outcome.message
    assert took_s <= 60.0 * PATIENCE
    assert lost_bytes <= 64 * MIB


@pytest.mark.gpu(least=2, expected_s=50, limit_s=200)
def test_a_late_rank_is_named(bench: Bench) -> None:
    """Rank 1 starts each forward 20 ms late."""
    named = late_ranks(bench, *LATE_RANK)
    assert any("rank 1" in message for message in named), named


@pytest.mark.gpu(expected_s=35, limit_s=150)
def test_the_last_visible_device_alone(bench: Bench, record_property: Record) -> None:
    """Made the only visible one by its UUID, it is the one that the cell's process recorded."""
    uuid = gpu_checks.last_visible_uuid(
        [str(torch.cuda.get_device_properties(index).uuid) for index in range(bench.gpus)]
    )
    if not torch_device_states(open_nvml(), None, {0: uuid}):
        pytest.skip("NVML does not know this device by its UUID")
    run = bench.run("last_device", variables={"CUDA_VISIBLE_DEVICES": uuid})
    measured = gpu_checks.measured_uuids(repeat_of(run, single(128)).ranks())
    record_property("uuids", [uuid, *measured])
    assert gpu_checks.problems(bench.analysis(run)) == []
    assert measured == {bare_uuid(uuid)}


@pytest.mark.gpu(expected_s=40, limit_s=250)
@pytest.mark.parametrize("name", OPTIONS)
def test_options(bench: Bench, name: str) -> None:
    """A short run on one device."""
    if name == "compile" and not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("torch.compile needs a C compiler for its launchers, and none is in PATH")
    run = bench.run(f"option_{name}")
    assert gpu_checks.problems(bench.analysis(run)) == []
