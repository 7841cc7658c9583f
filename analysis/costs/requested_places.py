"""The device counts and layouts that a prediction is asked for, as they are typed."""

from dpscope.profiling.records.matrix import parse_counts_and_layouts, parse_layout
from dpscope.profiling.store.errors import DpscopeError

_MOST_DEVICES = 1 << 20
Requested = tuple[int, int | None]
"""Devices and nodes; None where these are not stated."""


def requested_places(text: str, least: int) -> list[Requested]:
    """Counts, then layouts, from ``8,2x8``, of at least `least` devices.

    Raises DpscopeError with what to write.
    """
    fix = f"write device counts from {least} on, or layouts, such as 8,16 or 2x8"
    try:
        counts, layouts = parse_counts_and_layouts(text)
    except ValueError as error:
        raise DpscopeError(f"--predict {text}: {error}; {fix}") from error
    places: list[Requested] = []
    for count in counts:
        places.append((count, None))
    for word in layouts:
        layout = parse_layout(word)
        places.append((layout.devices, layout.nodes))
    for devices, _ in places:
        if not least <= devices <= _MOST_DEVICES:
            raise DpscopeError(f"--predict {text}: {fix}")
    return places
