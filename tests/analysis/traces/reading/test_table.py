"""Tables on NumPy columns: words as codes, rows taken when they are read, groups as pandas and
plain Python find them.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpscope.analysis.traces.reading.table import Table, Words

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
