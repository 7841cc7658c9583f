"""The model of a run before the run: that it can be built, and how large it is. Imports torch for all but dpscope's own."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpscope.launch.workload.data_files import IMAGE_SHAPES
from dpscope.launch.workload.model_names import CIFAR_RESNET, GPTS, SMALL_RESNET
from dpscope.profiling.records.config import Optimizer, Workload
from dpscope.profiling.store.errors import DpscopeError

if TYPE_CHECKING:
    from dpscope.launch.workload.tasks import BuiltModel


@dataclass(frozen=True)
class ModelSize:
    """What a step's time follows from, roughly."""

    parameters: int
    multiplications: int | None  # multiply-adds of one sample's forward; None where they cannot be counted


SIZES = {
    CIFAR_RESNET: ModelSize(parameters=11_173_962, multiplications=555_422_720),
    SMALL_RESNET: ModelSize(parameters=78_042, multiplications=3_125_888),
    "gpt_5m": ModelSize(parameters=5_289_472, multiplications=704_643_072),
    "gpt_30m": ModelSize(parameters=29_545_472, multiplications=8_053_063_680),
    "gpt_124m": ModelSize(parameters=124_439_808, multiplications=145_824_153_600),
}


def checked_model_size(workload: Workload, optimizer: Optimizer | None = None) -> ModelSize:
    """Build the model of a run once, so that a mistake in it is told before any job starts; returns its size.

    `optimizer` are settings that a model which brings its own optimizer must not contradict. The user's own is found from
    the working directory, as it is in workers. Raises DpscopeError, for a function that fails with the line of the user's
    file.
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

    try:
        with _as_in_a_process_of_its_own():
            built = build_model(workload.model)
    except MemoryError as error:
        raise DpscopeError(f"--model {workload.model}: this host has not enough memory to build it") from error
    check_classes(workload, built)
    if optimizer is not None and built.make_optimizer is not None:
        _check_own_optimizer(workload.model, optimizer)
    return size_of(built, IMAGE_SHAPES.get(workload.data))


def _check_own_optimizer(model: str, asked: Optimizer) -> None:
    """Raise DpscopeError for settings of SGD that do nothing: the model's own optimizer takes the learning rate alone."""
    usual = Optimizer()
    for name in ("momentum", "weight_decay"):
        if getattr(asked, name) != getattr(usual, name):
            raise DpscopeError(
                f"--{name.replace('_', '-')} {getattr(asked, name):g} does nothing here: {model} brings its own "
                "optimizer, which takes only --lr; omit it"
            )


@contextmanager
def _as_in_a_process_of_its_own() -> Iterator[None]:
    """The place that torchrun tells a process that is its job's only one: the user's function may read it."""
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    before = {name: os.environ.get(name) for name in place}
    os.environ.update(place)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def size_of(built: "BuiltModel", image_shape: tuple[int, ...] | None = None) -> ModelSize:
    """Parameters and multiplications of a model, which loses its weights: it runs once, on shapes alone.

    `image_shape` is a sample's (C x H x W) where the data have a size of their own, not the one the model asks for.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from dpscope.launch.workload.nested import called, mapped

    model = built.model
    parameters = sum(parameter.numel() for parameter in model.parameters())
    samples = 2  # batch norm does not take one
    try:
        with FlopCounterMode(display=False) as counter:
            if built.make_batch is not None:
                called(model.to("meta"), mapped(lambda tensor: tensor.to("meta"), built.make_batch(0, samples)[0]))
            else:
                model.to("meta")(torch.zeros(samples, *(image_shape or built.input_shape), device="meta"))
    except Exception:  # whatever the user's forward needs that shapes do not have
        return ModelSize(parameters=parameters, multiplications=None)
    return ModelSize(parameters=parameters, multiplications=counter.get_total_flops() // 2 // samples)
