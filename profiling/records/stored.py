"""The base of all stored types, and earlier names of their fields. Imports no torch."""

import re

import msgspec


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frozen record. An unknown field is an error, so that a file of a newer dpscope is refused and not partly read."""


def with_current_names(content: object) -> object:
    """Plain data of a stored file with current field names: earlier versions called GB/s gbps, which reads as bits.

    >>> with_current_names({"links": [{"gbps": 25.0, "nvlink_gbps": 300.0}]})
    {'links': [{'gb_per_s': 25.0, 'nvlink_gb_per_s': 300.0}]}
    """
    if isinstance(content, dict):
        return {re.sub("(^|_)gbps$", r"\1gb_per_s", name): with_current_names(value) for name, value in content.items()}
    return [with_current_names(value) for value in content] if isinstance(content, list) else content
