"""The models dpscope can train: ResNet-18 and ResNet-8 for CIFAR, GPTs, torchvision's
classification models, the user's own.

A new one of dpscope's own is made here; its name stands in data_files.py and its size in
model_size.py, whose test counts it. What it is fed with and its loss, if it is no classifier of
images, are in its `BuiltModel` (tasks.py).
"""

import importlib
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dpscope.launch.workload.data_files import CIFAR_RESNET, GPTS, OWN_MODELS, SMALL_RESNET
from dpscope.launch.workload.tasks import (
    BuiltModel,
    checked_count,
    checked_shape,
    model_from_dictionary,
)
from dpscope.profiling.records.typed_text import nearest
from dpscope.profiling.store.errors import DpscopeError


class _Block(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut with a 1x1 convolution where shapes
    differ.
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, images: Tensor) -> Tensor:
        inner = torch.relu(self.bn1(self.conv1(images)))
        return torch.relu(self.bn2(self.conv2(inner)) + self.shortcut(images))


class SmallResNet(nn.Module):
    """Three blocks of 16, 32 and 64 channels at 16, 8 and 4 pixels, 10 classes; 78,042 parameters,
    3.1 million multiply-adds an image.

    K. He et al., Deep Residual Learning (arXiv:1512.03385), section 4.2, with n = 1, a stem of
    stride 2 and, for shortcuts, their option B.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(_Block(16, 16, 1), _Block(16, 32, 2), _Block(32, 64, 2))
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N x 10) of images (N x 3 x 32 x 32)."""
        features = self.blocks(torch.relu(self.bn(self.stem(images))))
        logits: Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


@dataclass(frozen=True)
class GptSize:
    layers: int
    heads: int
    width: int
    vocabulary: int
    context: int


GPT_SIZES = {
    "gpt_5m": GptSize(layers=4, heads=4, width=256, vocabulary=8192, context=128),
    "gpt_30m": GptSize(layers=8, heads=8, width=512, vocabulary=8192, context=256),
    # GPT-2's smallest
    "gpt_124m": GptSize(layers=12, heads=12, width=768, vocabulary=50257, context=1024),
}


class Block(nn.Module):
    """Attention to earlier tokens, then two linear layers, each with a residual connection."""

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = nn.Linear(size.width, 3 * size.width)
        self.projection = nn.Linear(size.width, size.width)
        self.feed_norm = nn.LayerNorm(size.width)
        self.feed = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, values: Tensor) -> Tensor:
        """Values (N x T x width) to values of the same shape."""
        samples, tokens, width = values.shape
        parts = self.attention(self.attention_norm(values)).view(
            samples, tokens, 3, self.heads, width // self.heads
        )
        queries, keys, contents = parts.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, contents, is_causal=True)
        values = values + self.projection(attended.transpose(1, 2).reshape(samples, tokens, width))
        result: Tensor = values + self.feed(self.feed_norm(values))
        return result


class Gpt(nn.Module):
    """Tokens (N x T, int64) to logits of the next tokens (N x T x vocabulary).

    Decoder blocks as in GPT-2 (Radford et al. 2019): pre-norm, output layer tied to the embedding.
    """

    def __init__(self, size: GptSize) -> None:
        super().__init__()
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each token's successor."""
        values = self.tokens(tokens) + self.places(
            torch.arange(tokens.shape[1], device=tokens.device)
        )
        for block in self.blocks:
            values = block(values)
        logits: Tensor = self.head(self.norm(values))
        return logits


def _gpt(size: GptSize) -> BuiltModel:
    """A GPT with batches of random tokens; its loss is the mean cross entropy over all tokens of
    all samples.
    """

    def make_batch(seed: int, samples: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(size.vocabulary, (samples, size.context + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    return BuiltModel(
        model=Gpt(size),
        input_shape=(size.context,),
        classes=size.vocabulary,
        make_batch=make_batch,
        loss=lambda logits, targets: functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten()
        ),
        tokens=size.context,
    )


class AutocastModel(nn.Module):
    """Runs a model's forward in a lower precision.

    The autocast context is inside the model because its dtype does not follow into DataParallel's
    threads.
    """

    def __init__(self, model: nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.device_type = device_type
        self.dtype = dtype

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The model's output."""
        with torch.autocast(self.device_type, dtype=self.dtype):
            return self.model(*inputs, **named)


def build_model(name: str) -> BuiltModel:
    """Build the model `name` on the CPU, from the current random state.

    `name` is ``resnet18_cifar``, ``resnet8_cifar``, a GPT such as ``gpt_5m``, a torchvision
    classification model (224 x 224 pixels, 1000 classes), or ``package.module:function``, searched
    for in the working directory. The function takes no arguments and returns a module, which gets 3
    x 32 x 32 pixels and 10 classes, a tuple (module, shape of a sample, classes), or a dictionary
    that may also hold batches, loss and optimizer (`tasks.model_from_dictionary`). Raises
    DpscopeError for an unknown name.
    """
    if name in (CIFAR_RESNET, SMALL_RESNET):
        return BuiltModel(model=cifar_resnet18() if name == CIFAR_RESNET else SmallResNet())
    if name in GPTS:
        return _gpt(GPT_SIZES[name])
    if ":" in name:
        return _users_model(name)
    from torchvision import models

    check_model(name)
    # By default these two return auxiliary outputs in training.
    options = (
        {"aux_logits": False, "init_weights": False}
        if name in ("googlenet", "inception_v3")
        else {}
    )
    model: nn.Module = models.get_model(name, weights=None, **options)
    return BuiltModel(model=model, input_shape=(3, 224, 224), classes=1000)


def cifar_resnet18() -> nn.Module:
    """ResNet-18 for 32 x 32 pixels: 3x3 stem of stride 1, no max-pool, 10 classes; 11,173,962
    parameters.
    """
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def check_model(name: str) -> None:
    """Raise DpscopeError for an unknown name; builds nothing, but imports the user's module."""
    if name in OWN_MODELS:
        return
    if ":" in name:
        _user_function(name)
        return
    from torchvision import models

    names = sorted(models.list_models(module=models))  # for classification
    if name not in names:
        close = nearest(name, [*OWN_MODELS, *names], most=3, cutoff=0.8)
        hint = (
            f"did you mean {', '.join(close)}? Otherwise"
            if close
            else f"{CIFAR_RESNET} is the default;"
        )
        raise DpscopeError(
            f"--model {name}: no such model; {hint} name a torchvision classification model or your own "
            "as package.module:function, such as lenet:lenet5 in the folder examples"
        )


def _user_function(name: str) -> Callable[[], Any]:
    module_name, _, function_name = name.partition(":")
    is_file = os.sep in module_name or (module_name.endswith(".py") and os.path.isfile(module_name))
    if not module_name or module_name.startswith(".") or not function_name or is_file:
        raise DpscopeError(
            f"--model {name}: write it as package.module:function, relative to the working directory"
        )
    try:
        module = importlib.import_module(module_name)
    except MemoryError:
        raise
    except Exception as error:  # an error in the user's code
        raise DpscopeError(
            f"--model {name}: cannot import {module_name} ({_error_text(error)}); "
            "start dpscope in the folder that contains it, or install it"
            if isinstance(error, ImportError)
            else f"--model {name}: importing {module_name} failed: {_error_text(error)}; correct it there"
        ) from error
    function: Callable[[], Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise DpscopeError(
            f"--model {name}: {getattr(module, '__file__', module_name)} has no function {function_name}; "
            "name one that returns a module"
        )
    return function


def _error_text(error: Exception) -> str:
    """An error in one line, with the line of the user's file that raised it."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} in {error.filename}, line {error.lineno}"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    others = (__file__, importlib.__file__, "<frozen", "site-packages")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(name in frame.filename for name in others)
    ]
    return f"{text} in {frames[-1].filename}, line {frames[-1].lineno}" if frames else text


def _users_model(name: str) -> BuiltModel:
    function = _user_function(name)
    function_name = name.partition(":")[2]
    try:
        made = function()
    except MemoryError:
        raise
    except Exception as error:
        raise DpscopeError(
            f"--model {name}: {function_name}() failed: {_error_text(error)}; correct it there"
        ) from error
    if isinstance(made, dict):
        return model_from_dictionary(name, made)
    if isinstance(made, nn.Module):
        return BuiltModel(model=made)
    if isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], nn.Module):
        call = f"--model {name}: {function_name}()"
        shape = checked_shape(call, made[1])
        classes = checked_count(call, "the number of classes", made[2])
        return BuiltModel(model=made[0], input_shape=shape, classes=classes)
    raise DpscopeError(
        f"--model {name}: {function_name}() returned {type(made).__name__}; "
        "return a torch.nn.Module, (module, shape of a sample, number of classes), or a dictionary: see docs/variants.md"
    )
