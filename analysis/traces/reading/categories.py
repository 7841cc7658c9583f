"""The categories of a trace's events: what each is read as, which are a device's, which torch.profiler writes."""

import re

from dpscope.analysis.traces.reading.event_table import Category

_RUNTIME = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver", "mtia_runtime",
    "privateuse1_runtime", "privateuse1_driver", "runtime", "driver",
)  # fmt: skip
CATEGORIES = {
    **dict.fromkeys(("cpu_op", "operator"), Category.CPU_OP),
    "user_annotation": Category.USER_ANNOTATION,
    **dict.fromkeys(_RUNTIME, Category.RUNTIME),
    **dict.fromkeys(("kernel", "mtia_ccp_events"), Category.KERNEL),  # Kineto's later versions make the second an alias
    **dict.fromkeys(("gpu_memcpy", "memcpy"), Category.MEMCPY),
    **dict.fromkeys(("gpu_memset", "memset"), Category.MEMSET),
}
CATEGORIES |= {name.capitalize(): category for name, category in CATEGORIES.items()}

# Of a device and not read: hpu_op, mtia_insight, glow_runtime, collective_comm, and what other vendors name like these.
# Kineto's own names: libkineto/include/ActivityType.h.
_UNREAD_DEVICE = re.compile(r"^(?:mtia|hpu|glow|collective_comm|npu|tpu|gcu|mlu|musa)|_(?:runtime|driver|kernel)$")
# Kineto's other names: libkineto/include/ActivityType.h, and those of the trace itself.
_NOT_READ = frozenset(
    {"Trace", "Instant", "python_function", "overhead", "ac2g", "fwdbwd", "gpu_user_annotation", "cpu_instant_event",
     "cuda_sync", "cuda_profiler_range", "async_cpu_to_gpu"}
)  # fmt: skip
_OF_TORCH_PROFILER = CATEGORIES.keys() | _NOT_READ | {name.capitalize() for name in _NOT_READ}
DEVICE_ANNOTATION = "gpu_user_annotation"
"""A range of the CPU side as Kineto shows it on a device, around the work that was launched in it."""
DEVICE_WORK = frozenset({Category.KERNEL, Category.MEMCPY, Category.MEMSET})


def category_of(name: object) -> Category | None:
    """What events of a category are read as; None for those that are in no table."""
    return CATEGORIES.get(name) if isinstance(name, str) else None


def is_unread_device(name: str) -> bool:
    """Whether a category is that of a device which is not read."""
    return name not in CATEGORIES and _UNREAD_DEVICE.search(name) is not None


def is_read(name: str) -> bool:
    """Whether events of a category stand in the table, or are counted as a device's that is not read."""
    return name in CATEGORIES or is_unread_device(name)


def is_on_device(name: object) -> bool:
    """Whether events of a category are shown on a device."""
    return name == DEVICE_ANNOTATION or category_of(name) in DEVICE_WORK


def is_annotation(name: object) -> bool:
    """Whether events of a category are named ranges, on the host or around work on a device."""
    return name == DEVICE_ANNOTATION or category_of(name) is Category.USER_ANNOTATION


def is_of_torch_profiler(name: str) -> bool:
    """Whether torch.profiler writes events of a category."""
    return name in _OF_TORCH_PROFILER
