"""Which trace files are of one job: those whose ranks are all different, else those that lie in a folder of their own."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpscope.profiling.store.files import natural_order

_Ranks = Sequence[int | None]


def jobs_of(ranks: Mapping[Path, _Ranks]) -> dict[str, list[Path]]:
    """The files of each job, by the folder that tells it apart; a single job is called ``""``, and
    one whose files lie beside the others' folders ``.``.

    `ranks` are those that each file holds. Files whose ranks are all different are of one job. Others are told apart by the
    folders that hold them, as few levels deep as make ranks differ; in one folder they cannot be, and stay together.
    """
    absolute = {file: Path(os.path.abspath(file)) for file in ranks}
    common = Path(os.path.commonpath([path.parent for path in absolute.values()]))
    parts = {file: path.parent.relative_to(common).parts for file, path in absolute.items()}
    jobs = _split(ranks, parts, ())
    if len(jobs) == 1:
        return {"": [file for files in jobs.values() for file in files]}
    named = {"/".join(place) or ".": files for place, files in jobs.items()}
    return {name: named[name] for name in sorted(named, key=lambda name: natural_order(Path(name)))}


def _split(
    ranks: Mapping[Path, _Ranks], parts: Mapping[Path, tuple[str, ...]], place: tuple[str, ...]
) -> dict[tuple[str, ...], list[Path]]:
    """The files below a folder by the folder of their job."""
    depth = len(place)
    below = [file for file in ranks if parts[file][:depth] == place]
    inside = dict.fromkeys(parts[file][: depth + 1] for file in below)
    if _unique(ranks, below) or set(inside) == {place}:
        return {place: below}
    jobs: dict[tuple[str, ...], list[Path]] = {}
    for folder in inside:
        if folder == place:
            jobs[place] = [file for file in below if parts[file] == place]
        else:
            jobs |= _split(ranks, parts, folder)
    return jobs


def _unique(ranks: Mapping[Path, _Ranks], files: Sequence[Path]) -> bool:
    return all(count == 1 for count in Counter(rank for file in files for rank in ranks[file]).values())
