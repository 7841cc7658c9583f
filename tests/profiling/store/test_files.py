"""Names in the order people count."""

from pathlib import Path

from dpscope.profiling.store.files import natural_order
from dpscope.profiling.store.folders import RepeatFolder


def test_numbers_in_names_are_counted(tmp_path: Path) -> None:
    names = ["repeat10", "repeat2", "repeat1", "rank_1_2", "rank_1_10", "a10b2", "a10b10", "a9"]
    expected = ["a9", "a10b2", "a10b10", "rank_1_2", "rank_1_10", "repeat1", "repeat2", "repeat10"]
    assert [path.name for path in sorted(map(Path, names), key=natural_order)] == expected


def test_traces_of_many_ranks_are_in_their_order(tmp_path: Path) -> None:
    folder = RepeatFolder(tmp_path)
    (tmp_path / "traces").mkdir()
    for rank in (10, 2, 0):
        folder.trace_path(0, rank).touch()
    assert folder.traces() == [folder.trace_path(0, rank) for rank in (0, 2, 10)]
