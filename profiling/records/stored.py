"""The base of all stored types. Imports no torch."""

import msgspec


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frozen record. An unknown field is an error, so that a file of a newer dpscope is refused
    and not partly read.
    """
