"""The settings of `dpscope calibrate`, checked at once. Imports torch only if there may be GPUs."""

import math
import re
from collections.abc import Sequence
from typing import Any, cast

import msgspec

from dpscope.launch.jobs.devices import Devices, doubling, resolve_devices
from dpscope.profiling.records.calibration import (
    MEASURED_COLLECTIVES,
    CalibrationSettings,
    Collective,
)
from dpscope.profiling.records.config import TIMEOUT_CHECK
from dpscope.profiling.records.finding import counted
from dpscope.profiling.records.matrix import Layout, parse_layout
from dpscope.profiling.records.settings import declarations
from dpscope.profiling.records.typed_text import choose_from, parse_size
from dpscope.profiling.store.errors import DpscopeError, read_option

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}
"""Types that every backend can reduce, and the bytes of one element."""

# DistributedDataParallel's default, at which contention is measured
TYPICAL_BUCKET_BYTES = 25 << 20
# duration of one contention iteration in calls: one alone, two at once, about two during
# computation
CONTENDED_CALLS = 5


def contended_bytes(sizes: Sequence[int]) -> int:
    """The size at which contention is measured: the timed one nearest to a typical bucket."""
    return min(sizes, key=lambda size: abs(math.log(size / TYPICAL_BUCKET_BYTES)))


SETTINGS = {
    name: declared for name, declared in declarations(CalibrationSettings).items() if declared.help
}
"""Those that have options."""

DEFAULTS: dict[str, Any] = {
    name: declared.default
    for name, declared in SETTINGS.items()
    if declared.default is not msgspec.NODEFAULT
}
DEFAULTS |= {
    "device": "auto",
    "devices": None,
    "collectives": None,
    "min_bytes": "4KiB",
    "max_bytes": "256MiB",
}
"""As they are written. `devices`: 2, 4, 8, ... and all GPUs, or 2 processes on the CPU; then all of
them on 2, 4, ... nodes.
"""


def calibration_settings(nodes: int = 1, **flags: object) -> CalibrationSettings:
    """The settings from flags as they are written, on so many nodes; raises DpscopeError that names
    the mistake and a fix.
    """
    values = {**DEFAULTS, **flags}
    kinds = ("auto", "cuda", "cpu")
    measurable = cast(tuple[Collective, ...], MEASURED_COLLECTIVES)
    named = values["collectives"]
    device = values["device"]
    dtype = values["dtype"]
    chosen = measurable if named is None else [*filter(None, map(str.strip, named.split(",")))]
    unknown = next((name for name in chosen if name not in measurable), "")
    _check("--dtype", dtype, dtype in ITEM_BYTES, choose_from(dtype, ITEM_BYTES))
    _check("--device", device, device in kinds, choose_from(device, kinds))
    for name, fix in (
        ("iterations", "give 1 or more; from 5 on there are intervals"),
        ("warmup_iterations", "give 1 or more: the first call sets up connections"),
    ):
        _check(f"--{SETTINGS[name].option}", values[name], values[name] > 0, fix)
    fix = TIMEOUT_CHECK(values["timeout_s"])
    _check("--timeout", values["timeout_s"], not fix, fix)
    _check("--collectives", named, bool(chosen) and not unknown, choose_from(unknown, measurable))
    smallest = _size("--min-bytes", values["min_bytes"])
    largest = _size("--max-bytes", values["max_bytes"])
    _check(
        "--max-bytes",
        values["max_bytes"],
        largest >= smallest,
        f"give at least --min-bytes {values['min_bytes']}",
    )
    present = resolve_devices(device)
    counts, layouts = _device_counts(values["devices"], present, nodes)
    least = max((*counts, *(layout.devices for layout in layouts))) * ITEM_BYTES[dtype]
    _check(
        "--min-bytes",
        values["min_bytes"],
        smallest >= least,
        f"give {least} or more: one element for each device",
    )
    resolved = {
        "device": present.kind,
        "devices": counts,
        "layouts": tuple(map(str, layouts)),
        "collectives": tuple(name for name in measurable if name in chosen),
        "min_bytes": smallest,
        "max_bytes": largest,
    }
    return CalibrationSettings(**{**values, **resolved})


def _size(flag: str, text: str) -> int:
    """Bytes, at least one."""
    return max(1, round(read_option(flag, text, parse_size)))


def _check(flag: str, value: object, holds: bool, advice: str) -> None:
    if not holds:
        raise DpscopeError(f"{flag} {value}: {advice}")


def _device_counts(
    text: str | None, present: Devices, nodes: int
) -> tuple[tuple[int, ...], tuple[Layout, ...]]:
    """Device counts on one node, and layouts over several."""
    if present.count == 1 and nodes == 1:
        raise DpscopeError(
            "--device cuda: one GPU is visible and a collective needs two; "
            "check CUDA_VISIBLE_DEVICES, or measure the CPU with --device cpu"
        )
    if text is None:
        most = present.count or 2
        layouts = tuple(Layout(count, most) for count in doubling(nodes)[1:])
        return doubling(most)[1:], layouts
    on_one_node = [part.strip() for part in text.split(",") if "x" not in part]
    spanning = [part for part in text.split(",") if "x" in part]
    layouts = tuple(
        sorted({read_option(f"--devices {text}:", part, parse_layout) for part in spanning})
    )
    whole = all(re.fullmatch(r"[0-9]{1,9}", part) and int(part) >= 2 for part in on_one_node)
    _check(
        "--devices",
        text,
        whole,
        "give device counts of 2 or more, such as 2,4; over several nodes, such as 2x4",
    )
    counts = tuple(sorted(set(map(int, on_one_node))))
    present.check_present(
        max((*counts, *(layout.per_node for layout in layouts))), f"--devices {text}"
    )
    spanned = max((layout.nodes for layout in layouts), default=1)
    started = f"the command runs on {counted(nodes, 'node')}; start it on {spanned}, with --nodes"
    _check("--devices", text, spanned <= nodes, started)
    unused = f"--devices {text} spans {spanned}; add a count over all {nodes}, such as {nodes}x1"
    _check("--nodes", nodes, spanned >= nodes, unused)
    return counts, layouts
