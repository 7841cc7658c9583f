"""Ranges of stored numbers, checked where a file is read: what is outside is damage, not a
measurement. Imports no torch.
"""

from typing import Annotated

import msgspec

MOST_COUNT = 2**53  # up to which floats hold every whole number
_FROM_0 = msgspec.Meta(ge=0, le=MOST_COUNT)
Count = Annotated[int, _FROM_0]
"""Of steps, samples, bytes or elements, or a number in an order from 0."""
Positive = Annotated[int, msgspec.Meta(ge=1, le=MOST_COUNT)]
Stamp = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A seed, or nanoseconds since 1970."""
Flops = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Amount = Annotated[float, _FROM_0]
"""A duration, or another measured amount."""
Duration = Annotated[float, msgspec.Meta(gt=0, le=MOST_COUNT)]
Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]
