"""The states that nodes exchange in a torch.distributed.TCPStore, and which nodes are alive. Imports no torch."""

import itertools
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from dpscope.profiling.records.nodes import Here, State
from dpscope.profiling.store.sealed import sealed, unsealed

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LOST_S = 15.0  # without a sign of life: longer than a machine that swaps or a busy switch needs
THREAD_NAME = "dpscope-nodes"
_POLL_S = 0.2
_Told = TypeVar("_Told", Here, State)


class Board:
    """The published state of this node, and the states of the others.

    A thread exchanges them, because a call to the store blocks for ever if the network is cut. Each value is sealed with the
    run's secret; any other value counts as the loss of its node.
    """

    def __init__(self, store: "Store", secret: str, node: int, others: Iterable[int]) -> None:
        """`store` has the run's prefix already."""
        self.here: dict[int, Here] = {}  # the others that have joined
        self.states: dict[int, State] = {other: State() for other in others}
        self._store = store
        self._secret = secret
        self._node = node
        self._own = State()
        self._own_here: Here | None = None
        self._heard_s = dict.fromkeys(self.states, time.monotonic())
        self._why: dict[int, str] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name=THREAD_NAME, daemon=True)
        self._thread.start()

    def tell(self, here: Here | None = None, **changes: Any) -> None:
        """Publish changes of this node's state."""
        self._own_here = here or self._own_here
        self._own = msgspec.structs.replace(self._own, **changes)

    def lost(self, node: int) -> str | None:
        """The evidence that a node is lost; None while it is alive."""
        silent = f"it was silent for {LOST_S:g} s" if time.monotonic() - self._heard_s[node] > LOST_S else None
        return self.states[node].left or self._why.get(node) or silent

    def close(self) -> None:
        """Publish the last changes, and end."""
        self._closed.set()
        self._thread.join(timeout=2.0)

    def _exchange(self) -> None:
        last, beats = False, itertools.count(1)
        try:
            while not last:
                last = self._closed.wait(_POLL_S)
                if self._own_here is not None:
                    self._write(f"{self._node}/here", self._own_here)
                    self._own_here = None
                self._write(f"{self._node}/state", msgspec.structs.replace(self._own, beat=next(beats)))
                for other in set(self.states) - set(self._why):
                    self._hear(other)
        except RuntimeError:  # torch.distributed.DistError: the store, which is in node 0's process, is gone
            self._why |= {other: "dpscope has exited there" for other in self.states if other not in self._why}

    def _hear(self, other: int) -> None:
        try:
            if (state := self._read(f"{other}/state", State)) is not None and state.beat > self.states[other].beat:
                self.states[other], self._heard_s[other] = state, time.monotonic()
            if other not in self.here and (here := self._read(f"{other}/here", Here)) is not None:
                self.here[other] = here
        except ValueError as error:
            self._why[other] = f"what was said in its name is nothing that a node of this run says ({error})"

    def _write(self, key: str, value: Here | State) -> None:
        self._store.set(key, sealed(self._secret, key, value))

    def _read(self, key: str, kind: type[_Told]) -> _Told | None:
        return unsealed(self._secret, key, self._store.get(key), kind) if self._store.check([key]) else None
