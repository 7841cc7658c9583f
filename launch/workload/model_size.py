"""Sizes of models, known before a run. Imports torch only for models that dpscope does not
provide.
"""

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpscope.launch.workload.data_files import CIFAR_RESNET, GPTS, IMAGE_SHAPES, SMALL_RESNET
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from dpscope.launch.workload.tasks import BuiltModel


@dataclass(frozen=True)
class ModelSize:
    """Determines a step's time, roughly."""

    parameters: int
    # multiply-adds of one sample's forward pass; None if they cannot be counted
    multiplications: int | None
    uncounted: str = ""  # the error that prevents it, which a wrong shape of samples causes, too


SIZES = {
    CIFAR_RESNET: ModelSize(parameters=11_173_962, multiplications=555_422_720),
    SMALL_RESNET: ModelSize(parameters=78_042, multiplications=3_125_888),
    "gpt_5m": ModelSize(parameters=5_289_472, multiplications=704_643_072),
    "gpt_30m": ModelSize(parameters=29_545_472, multiplications=8_053_063_680),
    "gpt_124m": ModelSize(parameters=124_439_808, multiplications=145_824_153_600),
}


def checked_model_size(workload: Workload, optimizer: Optimizer | None = None) -> ModelSize:
    """Build a user's or torchvision's model once, so that errors in it are reported before a job
    starts; returns its size.

    A user's model is searched for in the working directory, as in workers. `optimizer` holds
    settings that a model with its own optimizer must not contradict. Raises DpscopeError; for a
    function that fails, with the line of the user's file.
    """
    if workload.model in GPTS and workload.data not in ("synthetic", "fake"):
        raise DpscopeError(
            f"--data {workload.data}: {workload.model} takes tokens; use --data synthetic or --data fake"
        )
    if workload.model in SIZES:
        return SIZES[workload.model]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    from dpscope.launch.workload.image_sets import check_classes
    from dpscope.launch.workload.models import build_model

    before = dict(os.environ)
    try:  # a user's function may read torchrun's variables, here those of a job of one process
        os.environ.update(
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        )
        built = build_model(workload.model)
    except MemoryError as error:
        raise DpscopeError(
            f"--model {workload.model}: this host does not have enough memory to build it"
        ) from error
    finally:
        os.environ.clear()
        os.environ.update(before)
    check_classes(workload, built)
    for name in (
        ("momentum", "weight_decay")
        if optimizer is not None and built.make_optimizer is not None
        else ()
    ):
        if (value := getattr(optimizer, name)) != getattr(Optimizer(), name):
            raise DpscopeError(
                f"--{name.replace('_', '-')} {value:g} does nothing here: {workload.model} has its own optimizer, which takes "
                "only --lr; omit it"
            )
    return size_of(built, IMAGE_SHAPES.get(workload.data))


def size_of(built: "BuiltModel", image_shape: tuple[int, ...] | None = None) -> ModelSize:
    """Parameters and multiplications of a model, from one run on shapes, in which it loses its
    weights.

    `image_shape` is a sample's (C x H x W), if the data have a fixed size.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from dpscope.launch.workload.nested import called, mapped

    model = built.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    samples = 2  # batch norm does not take one
    try:
        with FlopCounterMode(display=False) as counter:
            inputs: Any = torch.zeros(samples, *(image_shape or built.input_shape))
            if built.make_batch is not None:
                inputs = built.make_batch(0, samples)[0]
            called(model.to("meta"), mapped(lambda tensor: tensor.to("meta"), inputs))
    except Exception as error:  # the user's forward pass may need values
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return ModelSize(
            parameters=parameters, multiplications=None, uncounted=text[:160].rstrip(".")
        )
    return ModelSize(
        parameters=parameters, multiplications=counter.get_total_flops() // 2 // samples
    )
