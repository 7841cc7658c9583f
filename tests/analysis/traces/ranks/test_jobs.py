"""Traces of several jobs in one folder: told apart by their folders where files claim the same rank."""

from pathlib import Path

import pytest

from dpscope.analysis.traces.ranks.jobs import jobs_of


def files(*of: tuple[str, tuple[int | None, ...]]) -> dict[Path, tuple[int | None, ...]]:
    return {Path("/traces", name): ranks for name, ranks in of}


def names(jobs: dict[str, list[Path]]) -> dict[str, list[str]]:
    return {job: [str(path.relative_to("/traces")) for path in paths] for job, paths in jobs.items()}


def test_ranks_that_differ_are_of_one_job_wherever_they_lie() -> None:
    found = jobs_of(files(("node0/a.json", (0, 1)), ("node1/b.json", (2,)), ("c.json", (3,))))
    assert names(found) == {"": ["node0/a.json", "node1/b.json", "c.json"]}


def test_equal_ranks_are_told_apart_by_folder_and_no_deeper_than_that() -> None:
    found = jobs_of(
        files(
            ("run10/node0/r.json", (0,)), ("run10/node1/r.json", (1,)), ("run2/node0/r.json", (0,)),
            ("run2/node1/r.json", (1,)), ("alone.json", (0,)),
        )
    )  # fmt: skip
    assert names(found) == {
        ".": ["alone.json"],
        "run2": ["run2/node0/r.json", "run2/node1/r.json"],
        "run10": ["run10/node0/r.json", "run10/node1/r.json"],
    }


def test_one_folder_of_two_jobs_is_split_further_only_where_it_has_to_be() -> None:
    found = jobs_of(
        files(("a/x/0.json", (0,)), ("a/y/0.json", (0,)), ("b/x/0.json", (0,)), ("b/y/1.json", (1,))),
    )
    assert names(found) == {"a/x": ["a/x/0.json"], "a/y": ["a/y/0.json"], "b": ["b/x/0.json", "b/y/1.json"]}


@pytest.mark.parametrize("ranks", [((0,), (0,)), ((None,), (None,)), ((0, 1), (1, 2))])
def test_equal_ranks_in_one_folder_stay_together(ranks: tuple[tuple[int | None, ...], ...]) -> None:
    found = jobs_of(files(("a.json", ranks[0]), ("b.json", ranks[1])))
    assert names(found) == {"": ["a.json", "b.json"]}
