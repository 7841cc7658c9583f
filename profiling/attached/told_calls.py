"""The calls of single modules, told by their classes: nothing is left in a module that is pickled, copied or scripted."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import nn
from torch.compiler import is_dynamo_compiling

from dpscope.profiling.attached.own_frames import leave_out_frame

CallListener = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


class ToldCalls:
    """Tells of each call of the modules asked for, before it begins; a call that torch.compile traces is not told.

    A forward hook would do it as well, but lies in the module: `torch.save` writes it, and whoever loads that needs dpscope;
    `torch.jit.script` fails on it, and any hook sends torch the longer way through a call, which costs several times as much.
    So the module's class gets a `__call__` that asks whether this module is one of them. It is taken back by `stop`.
    """

    def __init__(self) -> None:
        # By class, so that a subclass tells of its own modules alone; then what tells, beside the class's own call or None.
        self._told: dict[type[nn.Module], dict[int, CallListener]] = {}
        self._calls: dict[type[nn.Module], tuple[object, object]] = {}

    def tell(self, module: nn.Module, told: CallListener) -> None:
        """Call `told` with the module and its arguments; the module must live until it is forgotten."""
        kind = type(module)
        if kind not in self._calls:
            own = kind.__dict__.get("__call__")
            telling = _telling(kind, own, self._told.setdefault(kind, {}))
            self._calls[kind] = telling, own
            kind.__call__ = telling  # type: ignore[method-assign]
        self._told[kind][id(module)] = told

    def tells(self, module: nn.Module) -> bool:
        """Whether it tells of this module's calls."""
        return id(module) in self._told.get(type(module), {})

    def forget(self, module: nn.Module) -> None:
        """Tell of its calls no more."""
        self._told.get(type(module), {}).pop(id(module), None)

    def stop(self) -> None:
        """Tell of nothing any more, and leave the classes as they were."""
        for kind, (telling, own) in self._calls.items():
            self._told[kind].clear()  # where somebody has replaced ours since, it stays below theirs and does nothing
            if kind.__dict__.get("__call__") is not telling:
                continue
            if own is None:
                del kind.__call__
            else:
                kind.__call__ = own  # type: ignore[method-assign, assignment]
        self._calls.clear()
        self._told.clear()


def _telling(kind: type[nn.Module], own: Any, told_of: dict[int, CallListener]) -> Any:
    """The class's call, told before. What it raises has a traceback without it: that is the script's."""
    parent: Any = next(one for one in kind.__mro__[1:] if "__call__" in vars(one))

    @wraps(own or parent.__call__)
    def telling(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() and (told := told_of.get(id(module))) is not None:
            told(module, args, kwargs)
        call = own or parent.__call__  # looked up each time: others replace that of nn.Module, too
        try:
            return call(module, *args, **kwargs)
        except BaseException as error:
            leave_out_frame(error)
            raise

    return telling
