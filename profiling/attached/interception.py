"""Listeners for module calls, optimizer steps and profilers; `stop` restores what each changes in
torch.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.autograd import profiler
from torch.compiler import is_dynamo_compiling
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

CallListener = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


class Patch:
    """A function of a torch class or module that calls `before` and `after` with its own arguments
    until `stop`.
    """

    def __init__(
        self,
        owner: Any,
        name: str,
        before: Callable[..., None] | None = None,
        after: Callable[..., None] | None = None,
    ) -> None:
        original = vars(owner)[name]
        self._active = True

        @wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if before is not None and self._active:
                before(*args, **kwargs)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                _hide_caller(error)
                raise
            if after is not None and self._active:
                after(*args, **kwargs)
            return result

        self._owner = owner
        self._name = name
        self._original = original
        self._wrapper = wrapper
        setattr(owner, name, wrapper)

    def stop(self) -> None:
        """Restore the function; a replacement that the script has made since stays, and the wrapper
        below it does nothing.
        """
        self._active = False
        if vars(self._owner)[self._name] is self._wrapper:
            setattr(self._owner, self._name, self._original)


class ModuleCalls:
    """Calls a listener before each call of the modules added to it, except for calls that
    torch.compile traces.

    A forward hook is stored in the module: `torch.save` writes it, so that loading the file needs
    dpscope, and `torch.jit.script` fails on it. Any hook also makes torch take the slower path
    through a call, at several times the cost. Therefore the module's class gets a `__call__` that
    looks up whether the module has a listener.
    """

    def __init__(self) -> None:
        # Keyed by the exact class: a subclass reports only its own modules.
        self._listeners: dict[type[nn.Module], dict[int, CallListener]] = {}
        # Of each class its new `__call__`, and the original or None.
        self._calls: dict[type[nn.Module], tuple[object, object]] = {}

    def add(self, module: nn.Module, listener: CallListener) -> None:
        """Call `listener` with the module and its arguments; the module must live until it is
        removed.
        """
        kind = type(module)
        if kind not in self._calls:
            original = kind.__dict__.get("__call__")
            wrapper = _listening_call(kind, original, self._listeners.setdefault(kind, {}))
            self._calls[kind] = wrapper, original
            kind.__call__ = wrapper  # type: ignore[method-assign]
        self._listeners[kind][id(module)] = listener

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._listeners.get(type(module), {})

    def remove(self, module: nn.Module) -> None:
        self._listeners.get(type(module), {}).pop(id(module), None)

    def stop(self) -> None:
        """Remove all listeners and restore the classes."""
        for kind, (wrapper, original) in self._calls.items():
            # where the script has replaced the wrapper, it stays below and does nothing
            self._listeners[kind].clear()
            if kind.__dict__.get("__call__") is not wrapper:
                continue
            if original is None:
                del kind.__call__
            else:
                kind.__call__ = original  # type: ignore[method-assign, assignment]
        self._calls.clear()
        self._listeners.clear()


def _listening_call(
    kind: type[nn.Module], original: Any, listeners: dict[int, CallListener]
) -> Any:
    parent: Any = next(base for base in kind.__mro__[1:] if "__call__" in vars(base))

    @wraps(original or parent.__call__)
    def wrapper(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
        if not is_dynamo_compiling() and (listener := listeners.get(id(module))) is not None:
            listener(module, args, kwargs)
        # looked up in each call: other tools replace that of nn.Module, too
        call = original or parent.__call__
        try:
            return call(module, *args, **kwargs)
        except BaseException as error:
            _hide_caller(error)
            raise

    return wrapper


def _hide_caller(error: BaseException) -> None:
    """Remove the frame that caught the error from its traceback; a bare `raise` does not add it
    again.
    """
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


class OptimizerHook:
    """Calls a function, which must be a plain one, after each step of any optimizer."""

    def __init__(
        self, listener: Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]
    ) -> None:
        # A compiled optimizer calls the hook after its graph, not within it. torch's private
        # decorator loads the compiler when it is first called, after optimizers have loaded it
        # anyway; the public one loads it at once.
        self._hook = register_optimizer_step_post_hook(_disable_dynamo(listener))

    def stop_within_step(self) -> None:
        """Stop from within the listener: while torch iterates over its hooks, an entry can be
        replaced but not removed.
        """
        table = self._hook.hooks_dict_ref()
        if table and self._hook.id in table and next(reversed(table)) != self._hook.id:
            table[self._hook.id] = lambda optimizer, args, kwargs: None
        else:
            self.stop()

    def stop(self) -> None:
        """Stop, outside of an optimizer's step."""
        self._hook.remove()


def recording() -> bool:
    """Whether this thread's current stream records a CUDA graph, in which nothing runs."""
    started = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return started and torch.cuda.is_current_stream_capturing()


class ProfilerWatch(Patch):
    """Detects profilers that the script constructs: two cannot record at the same time. `before` is
    called first.
    """

    def __init__(self) -> None:
        self.seen = False
        self._running: weakref.WeakSet[Any] = weakref.WeakSet()
        self._exits = Patch(profiler.profile, "__exit__", after=self._ended)
        self.before: Callable[[], None] = lambda: None
        self._ignored = False
        super().__init__(profiler.profile, "__init__", before=self._constructed)

    @property
    def busy(self) -> bool:
        """Whether a profiler of the script records, or prepares to."""
        return bool(self._running)

    def stop(self) -> None:
        """Restore torch's class."""
        super().stop()
        self._exits.stop()

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """Ignore profilers constructed in this context: dpscope's."""
        self._ignored = True
        try:
            yield
        finally:
            self._ignored = False

    def _constructed(self, made: Any, enabled: bool = True, **settings: Any) -> None:
        if enabled and not self._ignored:
            self.seen = True
            self._running.add(made)
            self.before()

    def _ended(self, made: Any, *error: object) -> None:
        self._running.discard(made)
