"""Differences between two machines on which times depend."""

import msgspec
import pytest
import torch  # noqa: F401 (its first import starts a process, which these tests may not)

from dpscope.profiling.machine.conditions import machine_differences, variable_differences
from dpscope.profiling.machine.environment import collect_environment
from dpscope.profiling.records.run import DeviceState, Environment


@pytest.fixture(scope="module")
def current() -> Environment:
    return msgspec.structs.replace(
        collect_environment(None, on_gpus=False),
        settings={"NCCL_ALGO": "Ring"},
        driver_version="550",
    )


def differences(then: Environment, now: Environment, *partly: str) -> list[str]:
    return [str(one) for one in machine_differences(then, now, partly)]


def test_variables_that_a_job_sets_are_no_difference(current: Environment) -> None:
    """A manifest written by a job's process contains the variables that torchrun and dpscope
    set.
    """
    in_job = {
        **current.settings, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "KINETO_LOG_LEVEL": "99", "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }  # fmt: skip
    assert variable_differences(current, msgspec.structs.replace(current, settings=in_job)) == []
    ordered = msgspec.structs.replace(
        current, settings={**in_job, "CUDA_DEVICE_ORDER": "FASTEST_FIRST"}
    )
    (difference,) = variable_differences(current, ordered)
    assert str(difference) == "CUDA_DEVICE_ORDER = PCI_BUS_ID, not FASTEST_FIRST"


def test_a_job_may_get_a_part_of_a_machines_gpus_and_cores(current: Environment) -> None:
    assert differences(current, current) == []
    a100, h100 = (DeviceState(index=0, name=name) for name in ("A100", "H100"))
    both = msgspec.structs.replace(current, accelerators=(a100, h100))
    one = msgspec.structs.replace(current, accelerators=(h100,), cpu_count=current.cpu_count + 1)
    cores = f"cores = {current.cpu_count}, not {current.cpu_count + 1}"
    assert differences(both, one, "GPUs", "cores") == []
    assert differences(both, one, "GPUs") == [cores]
    assert differences(both, one) == [cores, "GPUs = 1 x A100, 1 x H100, not 1 x H100"]
    # It may get less, but no other GPUs.
    assert differences(one, both, "GPUs", "cores") == ["GPUs = 1 x H100, not 1 x A100, 1 x H100"]
    assert differences(current, one, "GPUs", "cores") == ["GPUs = none, not 1 x H100"]


VERSIONS = {
    "cpu_name": "processor",
    "driver_version": "driver",
    "torch_version": "torch",
    "cuda_version": "CUDA",
}


@pytest.mark.parametrize(("field", "name"), [*VERSIONS.items(), ("nccl_version", "NCCL")])
def test_every_version_is_compared(current: Environment, field: str, name: str) -> None:
    older = msgspec.structs.replace(current, **{field: "2.1"})
    expected = [f"{name} = 2.1, not {getattr(current, field) or 'none'}"]
    assert differences(older, current) == differences(older, current, "GPUs", "cores") == expected
    assert (
        differences(current, msgspec.structs.replace(current, hostname="another", memory_bytes=1))
        == []
    )
