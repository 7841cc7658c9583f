"""Arguments passed on to DistributedDataParallel as they are, and the settings of PowerSGD."""

import json

POWERSGD_RANK = 1
POWERSGD_LEAST_COMPRESSION = 2  # a matrix that would not shrink by more than this factor is sent as it is
"""torch's own defaults of `PowerSGDState`."""

_OF_DPSCOPE = ("module", "device_ids", "output_device", "process_group", "device_mesh")


def ddp_arguments(text: str) -> dict[str, object]:
    """DDP's further arguments from ``default`` (none) or ``NAME=VALUE NAME=VALUE``.

    Values are JSON; what is no JSON is text. Raises ValueError.
    """
    found: dict[str, object] = {}
    for part in () if text == "default" else text.split():
        name, given, value = part.partition("=")
        if not (name.isidentifier() and given and value):
            raise ValueError(f"{part} is not NAME=VALUE; values have no spaces, as in bucket_cap_mb_list=[1,25]")
        if name in _OF_DPSCOPE:
            raise ValueError(f"{name} is set by dpscope; omit it")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
        except RecursionError as error:
            raise ValueError(f"{name} is nested too deeply") from error
    if found.get("mixed_precision", "bf16") not in ("bf16", "fp16"):
        raise ValueError("mixed_precision is bf16 or fp16")
    return found


def powersgd_elements(shapes: tuple[tuple[int, ...], ...]) -> int:
    """Elements that PowerSGD all-reduces in a step for gradients of these shapes.

    A gradient, seen as n rows of m, is sent as an n x r and an m x r matrix where that is less than half of it, else whole.
    Source: Vogels et al., "PowerSGD", NeurIPS 2019, algorithm 1; torch's `powerSGD_hook`.
    """
    total = 0
    for shape in shapes:
        rows, columns = (shape[0] if shape else 1), 1
        for length in shape[1:]:
            columns *= length
        sent = (rows + columns) * min(rows, columns, POWERSGD_RANK)
        total += sent if sent * POWERSGD_LEAST_COMPRESSION < rows * columns else rows * columns
    return total
