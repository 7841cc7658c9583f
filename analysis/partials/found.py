"""Partials among paths, found by name; apart from their files, which take pyarrow to read."""

from pathlib import Path

from dpscope.analysis.traces.ranks.trace_analysis import Paths, as_paths, find_traces
from dpscope.profiling.store.errors import DpscopeError, unreadable
from dpscope.profiling.store.files import natural_order

SUFFIX = ".dpscope"


def find_partials(paths: Paths) -> list[Path]:
    """The partials among the paths, with folders searched for *.dpscope; empty if there are only traces.

    Raises DpscopeError for a folder that cannot be read.
    """
    found: list[Path] = []
    for path in as_paths(paths):
        if path.is_dir():
            try:
                next(path.iterdir(), None)
            except OSError as error:
                raise DpscopeError(unreadable(path, error)) from error
            found += sorted(filter(_may_be_partial, path.rglob("*")), key=natural_order)
        elif _may_be_partial(path):
            found.append(path)
    return found


def _may_be_partial(file: Path) -> bool:
    # dpscope's event files for TensorBoard have the same suffix.
    return (
        file.suffix == SUFFIX and file.is_file() and "tfevents" not in file.name and not file.name.startswith(".tmp-")
    )


def partials_among(paths: Paths) -> list[Path]:
    """`find_partials`, but raises DpscopeError if some paths are partials and others are not."""
    found = find_partials(paths)
    others = [path for path in as_paths(paths) if not any(file == path or path in file.parents for file in found)]
    if found and others:
        raise DpscopeError(f"{found[0]} is a partial and {others[0]} is not: pass only partials or only traces")
    return found


def require_traces(paths: Paths) -> None:
    """Raise DpscopeError unless there are trace files among the paths, and no partial; nothing is read."""
    if partials := partials_among(paths):
        raise DpscopeError(
            f"{partials[0]} is a partial and holds no trace, and TensorBoard shows traces; name the traces"
        )
    find_traces(paths)
