"""What is stored of the version of the code that was measured."""

from dpscope.profiling.records.stored import Stored

SHORT = 10  # digits of a hash that are shown; git's own short names have seven or more


class Commit(Stored, frozen=True):
    """The commit that a folder of code had checked out."""

    name: str  # its hash, in full
    committed_at: str  # ISO 8601 with its offset
    changed: bool  # whether tracked files differed from it

    def __str__(self) -> str:
        return f"commit {self.name[:SHORT]}{', changed' if self.changed else ''}"
