"""A repeat's files: each read once, what is lost named."""

import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.runs.loaded_repeat import LoadedRepeat, load_repeats
from dpscope.profiling.store.files import write_bytes
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.paths import EXAMPLE_RUN


def repeats_of(run: Path, name: str = "ddp-d2-b8") -> list[LoadedRepeat]:
    folder = RunFolder(run)
    (cell,) = (planned.cell for planned in folder.manifest().plan if planned.cell.name == name)
    return list(load_repeats(folder, cell))


def test_every_file_of_a_cell_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Counter[str] = Counter()
    read_bytes, read_parquet = Path.read_bytes, pd.read_parquet

    def counted_bytes(path: Path) -> bytes:
        opened[str(path)] += 1
        return read_bytes(path)

    def counted_parquet(path: Path) -> pd.DataFrame:
        opened[str(path)] += 1
        return read_parquet(path)

    monkeypatch.setattr(Path, "read_bytes", counted_bytes)
    monkeypatch.setattr(pd, "read_parquet", counted_parquet)
    first, second = repeats_of(EXAMPLE_RUN)
    assert [len(one.ranks) for one in (first, second)] == [2, 2]
    of_cells = {path: count for path, count in opened.items() if "/cells/" in path}
    assert len(of_cells) == 2 * (1 + 2 + 2)  # repeats: the result, two ranks, their samples
    assert set(of_cells.values()) == {1}


def test_a_repeat_lacks_a_rank_or_is_not_begun_or_did_not_end_well(tmp_path: Path) -> None:
    run = Path(shutil.copytree(EXAMPLE_RUN, tmp_path / "run"))
    cell = run / "cells" / "ddp-d2-b8"
    (cell / "repeat0" / "rank_0_1.json").unlink()
    failed = (cell / "repeat1" / "result.json").read_bytes().replace(b'"ok"', b'"crashed"')
    write_bytes(cell / "repeat1" / "result.json", failed)
    (cell / "repeat2").mkdir()  # begun, and without a result yet
    (cell / "repeat-of-mine").mkdir()
    lost, crashed = repeats_of(run)
    assert (lost.index, lost.ranks, lost.missing_parts) == (0, (), "it holds results of 1 ranks of 2")
    assert (crashed.index, crashed.ranks, crashed.missing_parts) == (1, (), None)
    assert crashed.result.status == "crashed"
    assert lost.samples.empty
    assert crashed.samples.empty
