"""The states of a process's random number generators, as tensors and plain Python values."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


def rng_states(devices: Sequence[torch.device]) -> dict[str, Any]:
    """States of Python's, NumPy's and torch's generators, and of each CUDA device among `devices`, in their order."""
    numpy_state: Any = np.random.get_state(legacy=False)
    inner = numpy_state["state"]
    return {
        "python": random.getstate(),
        "numpy": {**numpy_state, "state": {**inner, "key": inner["key"].tolist()}},
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"],
    }


def set_rng_states(states: dict[str, Any], devices: Sequence[torch.device]) -> None:
    """Set what `rng_states` returned; CUDA devices beyond those it knew keep their states, and so do those on the CPU."""
    random.setstate(states["python"])
    inner = states["numpy"]["state"]
    key = np.array(inner["key"], dtype=np.uint32)
    np.random.set_state({**states["numpy"], "state": {**inner, "key": key}})
    torch.set_rng_state(states["torch"])
    cuda = [device for device in devices if device.type == "cuda"]
    for device, state in zip(cuda, states["cuda"], strict=False):
        torch.cuda.set_rng_state(state, device)
