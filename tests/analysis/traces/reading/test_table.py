"""Tables on NumPy columns: words as codes, rows taken when they are read, groups as pandas and
plain Python find them.
"""

import pickle

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpscope.analysis.traces.ranks.lateness import PAIR_COLUMNS
from dpscope.analysis.traces.reading.table import (
    COLUMN_KINDS,
    UNKNOWN,
    Groups,
    Table,
    Words,
    joined,
)
from dpscope.analysis.traces.steps import breakdown, collectives, data_parallel, kernel_times

WORDS = st.lists(st.sampled_from(["b", "all_reduce", "", "zz", None]), max_size=12)
NUMBERS = st.one_of(
    st.none(), st.integers(-3, 3), st.sampled_from([10**12, -(10**15)])
)  # dense, and too far apart to count


@given(first=WORDS, second=WORDS)
def test_words_are_what_they_were_made_from(
    first: list[str | None], second: list[str | None]
) -> None:
    one, both = Words.of(first), Words.joined([Words.of(first), Words.of(second)])
    assert one.tolist() == first
    assert both.tolist() == first + second
    assert list(both.categories) == sorted({word for word in first + second if word is not None})
    assert one.counts == {
        word: first.count(word) for word in sorted({word for word in first if word is not None})
    }
    assert one.isin("b", "").tolist() == [word in ("b", "") for word in first]
    marked = np.arange(len(first)) % 2 == 0
    assert one.where(marked).tolist() == [
        word if index % 2 == 0 else None for index, word in enumerate(first)
    ]
    other = Words.of(["other"] * len(first))
    kept = [word if index % 2 == 0 else "other" for index, word in enumerate(first)]
    assert one.where(marked, other).tolist() == kept


@given(
    rows=st.lists(
        st.tuples(NUMBERS, st.sampled_from(["b", "a", None]), st.sampled_from([0.5, 2.0, None]))
    )
)
def test_groups_are_those_of_plain_python(
    rows: list[tuple[int | None, str | None, float | None]],
) -> None:
    table = Table.of(
        step=[row[0] for row in rows],
        kind=[row[1] for row in rows],
        wait_us=[row[2] for row in rows],
    )
    ordered = table.group("step", "kind", "wait_us", in_order=True)
    keys = [
        tuple(
            (value is None, value or 0) if name != 1 else (value is None, value or "")
            for name, value in enumerate(row)
        )
        for row in rows
    ]
    assert ordered.code.tolist() == [sorted(set(keys)).index(key) for key in keys]
    assert [keys.index(key) for key in sorted(set(keys))] == ordered.first.tolist()
    appearing = table.group("step", "kind", "wait_us")
    assert appearing.code.tolist() == [list(dict.fromkeys(keys)).index(key) for key in keys]
    assert appearing.first.tolist() == [keys.index(key) for key in dict.fromkeys(keys)]
    steps = table.group("step")
    kinds = [
        {row[1] for row in rows if row[0] == rows[place][0]} - {None}
        for place in steps.first.tolist()
    ]
    assert steps.different(table.words("kind")).tolist() == [len(one) for one in kinds]


def test_sums_and_means_are_of_known_values() -> None:
    frame = pd.DataFrame({"rank": [3, 1, 3, 1], "wait_us": [1.0, None, 5.0, None]})
    table = Table.from_frame(frame)
    ranks = table.group("rank", in_order=True)
    assert table["rank"][ranks.first].tolist() == [1, 3]
    assert ranks.sums(table["wait_us"]).tolist() == [0.0, 6.0]
    assert ranks.means(table["wait_us"]).tolist() == pytest.approx([np.nan, 3.0], nan_ok=True)
    assert [ranks.least(table["wait_us"])[1], ranks.most(table["wait_us"])[1]] == [1.0, 5.0]
    assert table.group("rank").places.tolist() == [0, 0, 1, 1]


def test_rows_are_taken_in_any_order() -> None:
    table = Table.of(rank=range(4), kind=["a", None] * 2, wait_us=[0.0, 0.5, 1.0, 1.5])
    chosen = table.take(np.array([3, 0, 0])).assign(step=[7, 8, 9])
    assert chosen.records()[0] == {"rank": 3, "kind": None, "wait_us": 1.5, "step": 7}
    assert joined([chosen, chosen.take(chosen["rank"] == 3)])["step"].tolist() == [7, 8, 9, 7]
    assert chosen.frame["kind"].isna().tolist() == [True, False, False]
    assert len(pickle.dumps(chosen)) < 2_000  # without its frame


def test_missing_truths_and_whole_numbers_of_a_frame_stay_missing() -> None:
    truths, steps = (
        pd.Series([True, None], dtype="boolean"),
        pd.Series([None, 2**60 + 1], dtype=object),
    )
    table = Table.from_frame(
        pd.DataFrame({"overlapped": truths, "step": steps, "rank": [3.0, np.nan]})
    )
    assert table.records() == [
        {"overlapped": True, "step": None, "rank": 3}, {"overlapped": None, "step": 2**60 + 1, "rank": None},
    ]  # fmt: skip


def test_every_column_has_a_declared_kind() -> None:
    kept = Table.from_frame(
        pd.DataFrame({"share": [0.5], "bytes": [7], "overlapped": [True], "my_note_us": ["late"]})
    )
    # and not a column of the user's own
    assert kept.records() == [{"share": 0.5, "bytes": 7, "overlapped": True}]
    for columns in (
        breakdown.COLUMNS,
        collectives.COLUMNS,
        kernel_times.COLUMNS,
        data_parallel.COLUMNS,
        PAIR_COLUMNS,
    ):
        assert set(columns) <= set(COLUMN_KINDS)
    with pytest.raises(AssertionError, match="new_us is not declared"):
        Table.of(new_us=[1.5])  # nothing is guessed from the name's ending
    assert Table.of(new_us=np.array([3])).records() == [{"new_us": 3}]


def test_places_in_another_table_go_by_words_and_missing_values() -> None:
    table = Table.of(rank=[0, 0, 1, None], kind=["x", None, "y", "x"])
    other = Table.of(rank=[None, 0, 0, 0], kind=["x", None, "x", "x"])
    assert table.places_in(other, ("rank", "kind")).tolist() == [3, 1, -1, 0]


def test_words_and_numbers_are_not_confused() -> None:
    table = Table.of(rank=[1], kind=["a"])
    with pytest.raises(AssertionError, match="kind holds words"):
        table["kind"]
    with pytest.raises(AssertionError, match="rank holds numbers"):
        table.words("rank")


def test_no_columns_are_one_group_and_no_rows_are_none() -> None:
    assert Groups.by([], 3).code.tolist() == [0, 0, 0]
    assert len(Groups.by([np.array([], dtype=np.int64), Words.of([])], 0)) == 0
    assert Groups.by([np.full(2, UNKNOWN)], 2).code.tolist() == [0, 0]
