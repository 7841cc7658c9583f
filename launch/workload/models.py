"""The models dpscope can train: CIFAR's ResNet-18 and ResNet-8, GPTs, torchvision's classification models, the user's own."""

import importlib
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dpscope.launch.workload.gpt import build_gpt
from dpscope.launch.workload.model_names import CIFAR_RESNET, GPTS, OWN_MODELS, SMALL_RESNET
from dpscope.launch.workload.small_resnet import SmallResNet
from dpscope.launch.workload.tasks import BuiltModel, checked_count, checked_shape, told_model
from dpscope.profiling.records.typed_text import nearest
from dpscope.profiling.store.errors import DpscopeError


class AutocastModel(nn.Module):
    """Runs a model's forward in a lower precision.

    The autocast context is inside the model because its dtype does not follow into DataParallel's threads.
    """

    def __init__(self, model: nn.Module, device_type: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.model = model
        self.device_type = device_type
        self.dtype = dtype

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the model makes of its inputs, in the lower precision."""
        with torch.autocast(self.device_type, dtype=self.dtype):
            return self.model(*inputs, **named)


def build_model(name: str) -> BuiltModel:
    """Build the model called `name`, on the CPU, from the current random state.

    `name` is ``resnet18_cifar``, ``resnet8_cifar``, a GPT such as ``gpt_5m``, a torchvision classification model (224 x 224
    pixels, 1000 classes), or ``package.module:function``, found from the working directory. That function takes no arguments
    and returns a module, which then is fed 3 x 32 x 32 pixels and 10 classes, a tuple (module, shape of a sample, classes),
    or a dictionary that may hold batches, loss and optimizer as well (`tasks.told_model`). Raises DpscopeError for a name that
    leads nowhere.
    """
    if name == CIFAR_RESNET:
        return BuiltModel(model=cifar_resnet18(), input_shape=(3, 32, 32), classes=10)
    if name == SMALL_RESNET:
        return BuiltModel(model=SmallResNet(), input_shape=(3, 32, 32), classes=10)
    if name in GPTS:
        return build_gpt(name)
    if ":" in name:
        return _users_model(name)
    return _torchvision_model(name)


def cifar_resnet18() -> nn.Module:
    """ResNet-18 for 32 x 32 pixels: 3x3 stem of stride 1, no max-pool, 10 classes; 11,173,962 parameters."""
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=10)
    model.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def check_model(name: str) -> None:
    """Raise DpscopeError for a name that leads nowhere; builds nothing. Imports the user's module."""
    if name in OWN_MODELS:
        return
    if ":" in name:
        _user_function(name)
    else:
        _check_torchvision_name(name)


def classification_models() -> list[str]:
    """Names of torchvision's classification models."""
    from torchvision import models

    return sorted(models.list_models(module=models))


def _check_torchvision_name(name: str) -> None:
    known = classification_models()
    if name not in known:
        close = nearest(name, [*OWN_MODELS, *known], most=3)
        hint = f"did you mean {', '.join(close)}? Otherwise" if close else f"{CIFAR_RESNET} is the default;"
        raise DpscopeError(
            f"--model {name}: no such model; {hint} name a torchvision classification model or your own "
            "as package.module:function"
        )


def _torchvision_model(name: str) -> BuiltModel:
    from torchvision import models

    _check_torchvision_name(name)
    # These two return auxiliary outputs in training unless told otherwise.
    options = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model: nn.Module = models.get_model(name, weights=None, **options)
    return BuiltModel(model=model, input_shape=(3, 224, 224), classes=1000)


def _user_function(name: str) -> Callable[[], Any]:
    module_name, _, function_name = name.partition(":")
    if not module_name or module_name.startswith(".") or not function_name:
        raise DpscopeError(f"--model {name}: write it as package.module:function, found from the working directory")
    try:
        module = importlib.import_module(module_name)
    except MemoryError:
        raise
    except Exception as error:  # whatever the user's code raises is the user's to mend
        raise DpscopeError(
            f"--model {name}: cannot import {module_name} ({_told(error)}); "
            "start dpscope in the folder that holds it, or install it"
            if isinstance(error, ImportError)
            else f"--model {name}: importing {module_name} failed: {_told(error)}; correct it there"
        ) from error
    function: Callable[[], Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise DpscopeError(
            f"--model {name}: {getattr(module, '__file__', module_name)} has no function {function_name}; "
            "name one that returns a module"
        )
    return function


def _told(error: Exception) -> str:
    """An error in one line, with the line of the user's file that it comes from."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} in {error.filename}, line {error.lineno}"
    text = " ".join(f"{type(error).__name__}: {error}".split())
    frames = traceback.extract_tb(error.__traceback__)
    own = [one for one in frames if one.filename != __file__ and not _is_installed(one.filename)]
    return f"{text} in {own[-1].filename}, line {own[-1].lineno}" if own else text


def _is_installed(filename: str) -> bool:
    """Whether a file is a package's or Python's own, and not one that the user is likely to edit."""
    return filename.startswith("<frozen") or "site-packages" in filename or filename == importlib.__file__


def _users_model(name: str) -> BuiltModel:
    function = _user_function(name)
    function_name = name.partition(":")[2]
    try:
        made = function()
    except MemoryError:
        raise
    except Exception as error:
        raise DpscopeError(f"--model {name}: {function_name}() failed: {_told(error)}; correct it there") from error
    if isinstance(made, dict):
        return told_model(name, made)
    if isinstance(made, nn.Module):
        return BuiltModel(model=made, input_shape=(3, 32, 32), classes=10)
    if isinstance(made, tuple) and len(made) == 3 and isinstance(made[0], nn.Module):
        told = f"--model {name}: {function_name}()"
        shape, classes = checked_shape(told, made[1]), checked_count(told, "the number of classes", made[2])
        return BuiltModel(model=made[0], input_shape=shape, classes=classes)
    raise DpscopeError(
        f"--model {name}: {function_name}() returned {type(made).__name__}; "
        "return a torch.nn.Module, (module, shape of a sample, number of classes), or a dictionary: see docs/own-model.md"
    )
