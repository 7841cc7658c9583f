"""A repeat's files: each read once, what is lost named."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from dpscope.analysis.costs.sources import CostSources
from dpscope.analysis.runs.loaded_repeat import LoadedRepeat, load_repeats
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.store.files import write_bytes
from dpscope.profiling.store.folders import RunFolder
from tests.helpers.paths import EXAMPLE_RUN
from tests.helpers.run_cells import calibration


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
    assert (lost.index, lost.ranks, lost.missing_parts) == (0, (), "it holds results of 1 of 2 ranks")
    assert (crashed.index, crashed.ranks, crashed.missing_parts) == (1, (), None)
    assert crashed.result.status == "crashed"
    assert lost.samples.empty
    assert crashed.samples.empty


def on_two_nodes(repeat: Path) -> None:
    """A repeat's second process as on a second node, as earlier versions stored it: under the same cell."""
    for name in ("rank_0_1.json", "samples_0_1.parquet"):
        (repeat / name).rename(repeat / name.replace("_0_1", "_1_1"))
    told = json.loads((repeat / "rank_1_1.json").read_bytes())
    write_bytes(repeat / "rank_1_1.json", json.dumps({**told, "node": 1}).encode())


def test_repeats_over_other_numbers_of_nodes_are_not_pooled(tmp_path: Path) -> None:
    run = Path(shutil.copytree(EXAMPLE_RUN, tmp_path / "run"))
    on_two_nodes(run / "cells" / "ddp-d2-b8" / "repeat1")
    first, second = repeats_of(run)
    assert (len(first.ranks), first.missing_parts) == (2, None)
    assert (second.ranks, second.missing_parts) == (
        (), "it ran on 2 nodes, the first repeat on 1, so they are not repeats of one cell",
    )  # fmt: skip


@pytest.mark.long
def test_a_cell_that_ran_on_two_nodes_is_read_as_one_of_two(tmp_path: Path) -> None:
    """Its name is from before the nodes were part of it: nothing of one node predicts it."""
    run = Path(shutil.copytree(EXAMPLE_RUN, tmp_path / "run"))
    for repeat in (run / "cells" / "ddp-d2-b8").glob("repeat*"):
        on_two_nodes(repeat)
    data = load_run(run).cells["ddp-d2-b8"]
    assert (data.planned.nodes, data.nodes) == (1, 2)
    assert not any(finding.code == "repeat_incomplete" for finding in data.findings)
    sources = CostSources(calibration=calibration({"all_reduce": (10.0, 1.0)}))
    assert sources.on_nodes(data.nodes).cost("all_reduce", 2, 1e6) is None
    assert sources.cost("all_reduce", 2, 1e6) == 1_010.0  # 10 us + 1 MB / 1 GB/s
