"""torch's hook after each step of an optimizer: not compiled with it, and taken back while torch walks through its hooks.

And the count of backward passes, which shows that a script trains although no optimizer of torch's steps.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from dpscope.profiling.attached.own_frames import leave_out_frame

Stepped = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]


BACKWARDS_WITHOUT_STEP = 20  # of an optimizer of torch's: more than most scripts accumulate over


class BackwardCount:
    """Calls a function once when BACKWARDS_WITHOUT_STEP backward passes have ended and nobody has stopped it."""

    def __init__(self, many: Callable[[], None]) -> None:
        self.count = 0
        self._many = many
        self._original: Any = None
        self._counting: Any = None

    def listen(self) -> None:
        """Count backward passes from now on."""
        original = self._original = torch.autograd.backward

        @wraps(original)
        def counting(*args: Any, **kwargs: Any) -> None:
            try:
                original(*args, **kwargs)
            except BaseException as error:
                leave_out_frame(error)
                raise
            self.count += 1
            if self.count == BACKWARDS_WITHOUT_STEP and self._original is not None:
                self.stop()
                self._many()

        self._counting = counting
        torch.autograd.backward = counting

    def stop(self) -> None:
        """Leave torch's function as it was."""
        if self._original is not None:
            if torch.autograd.backward is self._counting:  # else the script has replaced it since
                torch.autograd.backward = self._original
            self._original = None


class OptimizerHook:
    """Calls a function after each step of any optimizer."""

    def __init__(self) -> None:
        self._hook: RemovableHandle | None = None

    def listen(self, stepped: Stepped) -> None:
        """Call the function, which must be a plain one, from now on."""
        # A compiled optimizer calls the hook after its graph, and not within it. torch's own decorator, since the public one
        # loads the compiler at once, and this one when it is first called: optimizers have loaded it by then.
        self._hook = register_optimizer_step_post_hook(_disable_dynamo(stepped))

    def leave(self) -> None:
        """Within that function: call it no more. Where the script's own hooks follow, torch must find ours in its place."""
        table = self._hook.hooks_dict_ref() if self._hook is not None else None
        if self._hook is not None and table and self._hook.id in table and next(reversed(table)) != self._hook.id:
            table[self._hook.id] = _nothing
        else:
            self.stop()

    def stop(self) -> None:
        """Outside of an optimizer's step."""
        if self._hook is not None:
            self._hook.remove()


def _nothing(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    pass
