"""A value that is not known, and why."""

import math
from typing import TypeVar

T = TypeVar("T")


class Missing(Exception):  # noqa: N818 (not a fault: a value that is not known)
    """Raised where a value is not known; the reason is what a reader sees in its place."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def known(value: T | None, reason: str) -> T:
    """The value. Raises Missing where there is none, or a number that is not finite."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise Missing(reason)
    return value
