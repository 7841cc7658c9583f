"""torch's hook after each step of an optimizer: not compiled with it, and taken back while torch walks through its hooks."""

from collections.abc import Callable
from typing import Any

from torch._compile import _disable_dynamo
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

Stepped = Callable[[Optimizer, tuple[Any, ...], dict[str, Any]], None]


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
