"""The environment of a host of which nothing matters."""

from dpscope.profiling.records.run import Environment


def environment(hostname: str = "host") -> Environment:
    return Environment(
        hostname=hostname, platform="-", cpu_name=None, cpu_count=1, memory_bytes=None, python_version="3", torch_version=None,
        torchvision_version=None, cuda_version=None, nccl_version=None, driver_version=None,
    )  # fmt: skip
