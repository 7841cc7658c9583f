"""How findings about published tables name studies, settings and lists of them."""

from collections.abc import Sequence

_SHOWN = 8


def place(study: str | None, run: str | None) -> str:
    """How messages name a study and its run."""
    name = study or "table"
    return f"{name} ({run})" if run else name


def at(batch_size: int | None, devices: int | None) -> str:
    """How messages name a setting: (batch_size, devices)."""
    return f"({'any' if batch_size is None else batch_size}, {'any' if devices is None else devices})"


def listed(parts: Sequence[str]) -> str:
    """Some parts, and how many more there are."""
    rest = len(parts) - _SHOWN
    return ", ".join(parts[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
