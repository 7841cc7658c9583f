"""Device states from replayed NVML answers, findings about them, variables, and the commit of real
checkouts.
"""

import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from dpscope.profiling.machine import environment as environment_module
from dpscope.profiling.machine.conditions import variable_differences
from dpscope.profiling.machine.environment import (
    collect_environment,
    commit_of,
    device_findings,
    device_states,
    findings_at_moments,
    machine_findings,
    platform_version,
    states_under_load,
    torch_device_states,
)
from dpscope.profiling.machine.interconnect import group_rate, interconnect
from dpscope.profiling.records.links import DeviceLinks, Interconnect, PairLink
from dpscope.profiling.records.run import Commit, DeviceState, Environment
from tests.helpers.known import known
from tests.helpers.nvml_records import ReplayedNvml, TwoGpuNvml
from tests.helpers.paths import DATA


def codes(states: Sequence[DeviceState]) -> list[tuple[str, str]]:
    return [(one.code, one.severity) for one in device_findings(states)]


def test_states_are_those_of_nvml_and_what_it_does_not_report_is_missing() -> None:
    first, second = device_states(TwoGpuNvml(), ())
    assert (first.index, first.uuid, first.name) == (0, "GPU-aaaa", "NVIDIA A100-SXM4-40GB")
    assert (first.power_w, second.temperature_c, first.sm_clock_mhz) == (61.25, 83, 1410)
    assert (first.throttle_reasons, first.other_process_ids) == ((), ())
    assert device_findings([first, second]) == []
    first, _ = device_states(
        TwoGpuNvml(PowerUsage=(None, None), ComputeRunningProcesses=(None, None)), ()
    )
    assert (first.power_w, first.other_process_ids) == (None, None)
    assert device_states(None, ()) == ()
    # In a container the job's process ids are unknown, and therefore the other processes, too.
    assert device_states(TwoGpuNvml(), None)[0].other_process_ids is None


def test_states_belong_to_torchs_devices() -> None:
    """By default CUDA numbers the fastest GPU first: here NVML's second."""
    nvml = TwoGpuNvml()
    first, second = torch_device_states(nvml, (), {0: "bbbb", 1: "aaaa"})  # torch prints no prefix
    assert (first.index, first.uuid, first.temperature_c) == (0, "GPU-bbbb", 83)
    assert (second.index, second.uuid, second.temperature_c) == (1, "GPU-aaaa", 41)
    # GPUs unknown to NVML are omitted
    (only,) = torch_device_states(nvml, (), {3: "GPU-aaaa", 4: "cccc", 5: ""})
    assert (only.index, only.uuid) == (3, "GPU-aaaa")
    assert torch_device_states(TwoGpuNvml(UUID=(None, None)), (), {0: ""}) == ()
    assert torch_device_states(None, (), {0: "aaaa"}) == ()


def test_findings_of_unfair_devices() -> None:
    processes = [SimpleNamespace(pid=process) for process in (11, 12)]
    nvml = TwoGpuNvml(
        CurrentClocksThrottleReasons=(0x0, 0x44),
        ComputeRunningProcesses=(processes, processes[1:]),
        Name=("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
        CurrPcieLinkWidth=(16, 8),
        NvLinks=(12, 11),
    )
    findings = device_findings(device_states(nvml, (12,)))
    found = {finding.code: finding.message for finding in findings}
    mixed = [one.message for one in findings if one.code == "mixed_devices"]
    assert set(found) == {"device_throttled", "device_shared", "mixed_devices"}
    assert ["1 x 12, 1 x 11 (GPU 1)" in one for one in mixed] == [False, False, True]
    assert (
        "GPU 1 is slowed down by sw_power_cap, hw_thermal_slowdown at 83 C"
        in found["device_throttled"]
    )
    assert "GPU 0 is shared with other processes (11)" in found["device_shared"]
    assert ["1 x 16, 1 x 8" in one for one in mixed] == [False, True, False]


def test_a_power_limit_is_a_warning_if_it_makes_a_gpu_slower() -> None:
    """95% of 1,410 MHz is 1,339.5: 1,340 is as fast as the other, 1,338 is not."""

    def states(clock_mhz: int) -> tuple[DeviceState, ...]:
        return device_states(
            TwoGpuNvml(CurrentClocksThrottleReasons=(0x0, 0x4), ClockInfo=(1410, clock_mhz)), ()
        )

    (found,) = device_findings(states(1338))
    assert found.severity == "warning"
    assert "to 1338 MHz, while another GPU has 1410" in found.message
    assert device_findings(states(1340)) == []
    # alone: nothing to be slower than
    assert device_findings(states(1338)[1:]) == []
    # a warning at any clock
    hot = device_states(TwoGpuNvml(CurrentClocksThrottleReasons=(0x4, 0x40)), ())
    assert codes(hot) == [("device_throttled", "warning")]


def test_clocks_of_different_moments_are_not_compared() -> None:
    """A GPU at its power limit under load has a lower clock than when idle, which does not make it
    slower than others.
    """
    idle = DeviceState(index=0, uuid="GPU-a", sm_clock_mhz=1980, throttle_reasons=())
    loaded = DeviceState(
        index=0, uuid="GPU-a", sm_clock_mhz=1500, throttle_reasons=("sw_power_cap",)
    )
    assert findings_at_moments([idle], [loaded]) == []
    faster = msgspec.structs.replace(idle, index=1, uuid="GPU-b")
    assert [one.code for one in findings_at_moments([idle], [loaded, faster])] == [
        "device_throttled"
    ]
    hot = msgspec.structs.replace(loaded, throttle_reasons=("hw_thermal_slowdown",))
    assert len(findings_at_moments([hot], [hot])) == 1


def test_states_of_several_moments_are_joined() -> None:
    def at(clock_mhz: int, temperature_c: int, *reasons: str, index: int = 0) -> DeviceState:
        return DeviceState(
            index=index,
            sm_clock_mhz=clock_mhz,
            temperature_c=temperature_c,
            throttle_reasons=reasons,
            power_w=None,
        )

    first, second = states_under_load(
        [
            (at(1980, 40), at(1700, 50, index=1)),
            (at(1500, 60, "sw_power_cap"),),
            (at(1480, 55, "sw_power_cap"),),
        ]
    )
    assert (first.sm_clock_mhz, first.temperature_c, first.throttle_reasons) == (
        1500,
        60,
        ("sw_power_cap",),
    )
    assert (first.power_w, first.other_process_ids) == (None, None)  # unknown stays unknown
    assert (second.index, second.sm_clock_mhz) == (1, 1700)
    assert states_under_load([]) == ()


def found_codes(environment: Environment, devices: int) -> list[str]:
    return [finding.code for finding in machine_findings(environment, "cuda", devices)]


def on_gpus(
    patch: pytest.MonkeyPatch, nvml: TwoGpuNvml | None, *devices: SimpleNamespace
) -> Environment:
    """The environment where torch can use these devices."""
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "init", lambda: None)
    patch.setattr(torch.cuda, "device_count", lambda: len(devices))
    patch.setattr(torch.cuda, "get_device_properties", lambda index: devices[index])
    return collect_environment(nvml, on_gpus=True)


def linked(*fast: tuple[int, int], blocked: tuple[tuple[int, int], ...] = ()) -> Interconnect:
    """Four GPUs, numbered by torch in reverse, with NVLinks and blocked peer access between these
    pairs of NVML's.
    """
    devices = tuple(DeviceLinks(index=index, torch_index=3 - index) for index in range(4))
    pairs = (
        PairLink(
            first,
            second,
            direct_nvlinks=2 * ((first, second) in fast),
            peer_access=(first, second) not in blocked,
        )
        for first, second in combinations(range(4), 2)
    )
    return Interconnect(devices=devices, pairs=tuple(pairs))


def test_pairs_of_gpus_unlike_the_others_are_named() -> None:
    here = collect_environment(None, on_gpus=False)
    states = tuple(DeviceState(index=index, name="GPU") for index in range(4))

    def found(links: Interconnect, devices: int = 4) -> dict[str, str]:
        environment = msgspec.structs.replace(here, accelerators=states, interconnect=links)
        findings = machine_findings(environment, "cpu", devices)
        return {finding.code: finding.message for finding in findings}

    every = tuple(combinations(range(4), 2))
    assert found(linked(*every)) == found(linked()) == {}
    one_slow = linked(*every[1:], blocked=((0, 1),))
    assert {code: message.partition(":")[0] for code, message in found(one_slow).items()} == {
        "no_peer_access": "No peer access between GPUs 2 and 3",
        "mixed_devices": "No NVLink between GPUs 2 and 3, unlike the other pairs",
    }
    assert found(one_slow, devices=2) == {}  # torch's first two are other GPUs
    many = found(linked(blocked=every))["no_peer_access"]
    assert many.startswith(
        "No peer access between GPUs 2 and 3, 1 and 3, 0 and 3 and 3 more pairs:"
    )


def test_a_mig_instance_is_recorded_as_torch_lists_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML lists the two whole GPUs, torch the one instance that it can use; a whole GPU is known
    by its UUID, in any order.
    """
    instance = SimpleNamespace(uuid="6f1c", name="NVIDIA A100-SXM4-40GB MIG 3g.20gb")
    environment = on_gpus(monkeypatch, TwoGpuNvml(), instance)
    (state,) = environment.accelerators
    assert (state.index, state.uuid, state.name) == (0, "6f1c", instance.name)
    assert found_codes(environment, 1) == ["device_state_unknown"]
    (whole,) = on_gpus(
        monkeypatch, TwoGpuNvml(), SimpleNamespace(uuid="bbbb", name="")
    ).accelerators
    assert (whole.index, whole.uuid, whole.temperature_c) == (0, "GPU-bbbb", 83)


def test_gpus_that_nvml_does_not_know_are_named_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as AMD's: their names distinguish machines, their states stay unknown."""
    names = ("AMD Instinct MI300X", "AMD Instinct MI250X")
    environment = on_gpus(monkeypatch, None, *(SimpleNamespace(name=name) for name in names))
    assert [(one.index, one.name) for one in environment.accelerators] == list(enumerate(names))
    assert found_codes(environment, 1) == ["device_state_unknown"]
    assert found_codes(environment, 2) == ["device_state_unknown", "mixed_devices"]
    assert collect_environment(None, on_gpus=False).accelerators == ()  # of a run on the CPU


def test_the_platform_is_cuda_rocm_or_none() -> None:
    assert platform_version(SimpleNamespace(cuda=None, hip="6.4.43482")) == "ROCm 6.4.43482"
    assert platform_version(SimpleNamespace(cuda="13.2", hip=None)) == "13.2"
    assert platform_version(SimpleNamespace(cuda=None, hip=None)) is None


CHANGES_RESULTS = (
    *(
        "PYTORCH_CUDA_ALLOC_CONF",
        "NVIDIA_TF32_OVERRIDE",
        "CUBLAS_WORKSPACE_CONFIG",
        "CUDNN_LOGLEVEL_DBG",
    ),
    *(
        "HIP_LAUNCH_BLOCKING",
        "HSA_ENABLE_SDMA",
        "RCCL_MSCCL_ENABLE",
        "DDP_SET_LAST_BUCKET_CAP",
        "NCCL_ALGO",
    ),
)


def test_variables_that_change_results_are_recorded_and_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in CHANGES_RESULTS:
        monkeypatch.delenv(name, raising=False)
    without = collect_environment(None, on_gpus=False)
    for name in (*CHANGES_RESULTS, "HIP_VISIBLE_DEVICES", "PYTORCH_KERNEL_CACHE_PATH", "CUDA_HOME"):
        monkeypatch.setenv(name, "1")  # the last three change nothing
    differences = variable_differences(without, collect_environment(None, on_gpus=False))
    assert [(one.what, one.then, one.now) for one in differences] == [
        (name, "unset", "1") for name in sorted(CHANGES_RESULTS)
    ]


def test_a_gpu_off_the_bus_is_a_finding() -> None:
    one_lost = TwoGpuNvml(lost=(0,))
    lost, there = device_states(one_lost, ())
    # the others keep their numbers
    assert (lost, there.index, there.uuid) == (DeviceState(index=0), 1, "GPU-bbbb")
    assert [state.index for state in torch_device_states(one_lost, (), {0: "bbbb"})] == [0]
    (finding,) = device_findings([lost, there, there])
    assert (finding.code, finding.severity) == ("device_lost", "error")
    assert "GPU 0 does not answer its driver" in finding.message
    # A GPU lost after its handle was returned answers nothing; one with any answer is not lost.
    answers = {name: (None, value[1]) for name, value in TwoGpuNvml().answers.items()} | {
        "NvLinks": (0, 12)
    }
    silent, _ = device_states(TwoGpuNvml((), **answers), ())
    assert [finding.code for finding in device_findings([silent])][:1] == ["device_lost"]
    warm, _ = device_states(TwoGpuNvml((), **{**answers, "Temperature": (41, 83)}), ())
    assert device_findings([warm]) == []


def test_a_gpu_that_torch_lists_and_nvml_lost_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its UUID cannot be asked for: it is the one whose UUID no responding GPU has."""
    gpus = [SimpleNamespace(name="NVIDIA A100", uuid=uuid) for uuid in ("bbbb", "6f1c")]
    there, lost = on_gpus(monkeypatch, TwoGpuNvml(lost=(0,)), *gpus).accelerators
    assert (there.index, there.uuid, lost) == (0, "GPU-bbbb", DeviceState(index=1))
    assert "device_lost" in [finding.code for finding in device_findings([there, lost])]


def test_gpus_of_unknown_state_are_a_finding() -> None:
    here = collect_environment(None, on_gpus=False)
    assert found_codes(here, 1) == ["device_state_unknown"]
    assert machine_findings(here, "cpu", 1) == []
    two = msgspec.structs.replace(
        here, accelerators=device_states(TwoGpuNvml(Name=("A100", "H100")), ())
    )
    assert found_codes(two, 2) == ["mixed_devices"]
    assert found_codes(two, 1) == []  # the other is not in use


def test_the_links_of_the_visible_gpus_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 A100 in two bridged pairs; GPU 1 and 2 are of different pairs: PCIe 4.0 x16, 31.508
    GB/s.
    """
    nvml = ReplayedNvml(DATA / "nvml" / "a100_pcie_x4_bridged.json")
    # not among the recorded calls
    monkeypatch.setattr(environment_module, "driver_version", lambda _: "550.54.15")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    uuids = [device.uuid for device in interconnect(nvml).devices]
    for gpus, gb_per_s in (((0, 1), 300.0), ((1, 2), 31.508)):
        visible = tuple(DeviceState(index=index, uuid=uuids[gpu]) for index, gpu in enumerate(gpus))
        monkeypatch.setattr(
            environment_module, "device_states", lambda *_, visible=visible: visible
        )
        links = known(collect_environment(nvml, on_gpus=True).interconnect)
        rate = known(group_rate(links, range(2)))
        assert rate.gb_per_s == pytest.approx(gb_per_s, abs=1e-3)
    assert collect_environment(None, on_gpus=False).interconnect is None


COMMITTED_AT = "2030-05-06T07:08:09+02:00"
NAME = (
    "-c",
    "user.name=nobody",
    "-c",
    "user.email=nobody@example.org",
    "-c",
    "commit.gpgsign=false",
)


@pytest.mark.process
def test_the_commit_is_recorded_with_changes_of_tracked_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", COMMITTED_AT)

    def git(*arguments: str) -> str:
        ended = subprocess.run(
            ["git", *NAME, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return ended.stdout.strip()

    inside = tmp_path / "project" / "models"
    inside.mkdir(parents=True)
    assert commit_of(inside) is None, "outside a checkout"
    code = inside / "net.py"
    code.write_text("layers = 18\n")
    git("init", "--quiet")
    assert commit_of(inside) is None, "nothing is committed yet"
    git("add", ".")
    git("commit", "--quiet", "--message", "A net")

    commit = commit_of(inside)
    assert commit == Commit(git("rev-parse", "HEAD"), COMMITTED_AT, changed=False)
    assert datetime.fromisoformat(commit.committed_at) == datetime(2030, 5, 6, 5, 8, 9, tzinfo=UTC)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "manifest.json").write_text("{}")
    assert commit_of(inside) == commit, "untracked files are no change"
    code.write_text("layers = 34\n")
    assert commit_of(inside) == Commit(commit.name, COMMITTED_AT, changed=True)
    assert str(commit_of(inside)) == f"commit {commit.name[:10]}, changed"
    monkeypatch.setenv("PATH", str(inside))  # without git
    assert commit_of(inside) is None
