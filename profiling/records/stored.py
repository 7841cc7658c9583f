"""The base of every type that is stored. Imports no torch."""

import msgspec


class Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A frozen record; a field this version does not know is an error.

    So a file written by a newer dpscope is refused and not half understood.
    """
