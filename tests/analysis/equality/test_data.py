"""The files of one process of `dpscope equal`, read: what cannot have been stored is refused in a
line.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpscope.analysis.equality.data import read_process
from dpscope.profiling.store.errors import DpscopeError

RECORD: dict[str, Any] = {
    "rank": 0,
    "steps": 2,
    "parameters": [{"name": "weight", "elements": 6, "stored": 6}],
    "random_layers": [],
}


def written(folder: Path, record: dict[str, Any], index: list[int]) -> tuple[Path, Path]:
    """The two files of a process that trained on these samples."""
    described, arrays = folder / "rank_0.json", folder / "rank_0.npz"
    described.write_text(json.dumps(record))
    order = np.arange(len(index))
    np.savez(arrays, sample_step=order, sample_index=np.array(index, dtype=np.int64))
    return described, arrays


def test_what_was_stored_is_read(tmp_path: Path) -> None:
    found = read_process(*written(tmp_path, RECORD, [4, 2]))
    assert found.record.parameters[0].elements == 6
    assert found.arrays["sample_index"].tolist() == [4, 2]


@pytest.mark.parametrize(
    ("changes", "index", "told"),
    [
        ({"rank": -1}, [4, 2], "rank"),
        ({"steps": 0}, [4, 2], "steps"),
        ({"parameters": [{"name": "weight", "elements": -1, "stored": 6}]}, [4, 2], "elements"),
        ({"parameters": [{"name": "weight", "elements": 6, "stored": 2**63}]}, [4, 2], "stored"),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    changes: dict[str, Any], index: list[int], told: str, tmp_path: Path
) -> None:
    files = written(tmp_path, {**RECORD, **changes}, index)
    with pytest.raises(DpscopeError, match=told) as raised:
        read_process(*files)
    assert str(tmp_path) in str(raised.value)


def test_arrays_that_are_missing_or_cut_short_are_reported(tmp_path: Path) -> None:
    record, arrays = written(tmp_path, RECORD, [4, 2])
    arrays.write_bytes(arrays.read_bytes()[:-40])
    with pytest.raises(DpscopeError, match=r"rank_0.npz is missing or damaged"):
        read_process(record, arrays)
    arrays.unlink()
    with pytest.raises(DpscopeError, match=r"rank_0.npz is missing or damaged"):
        read_process(record, arrays)
