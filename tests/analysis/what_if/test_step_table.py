"""Tables of measured steps: what their columns mean, and what is refused."""

from pathlib import Path

import pytest

from dpscope.analysis.what_if.step_table import Placement, read_step_table
from dpscope.profiling.store.errors import DpscopeError


def table(folder: Path, text: str) -> Path:
    path = folder / "steps.csv"
    path.write_text(text)
    return path


def test_placements(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "nodes,ranks,gpus_per_node,ranks_per_node,batch_per_rank,step_ms\n"
        "1,1,1,,32,100\n"  # one device
        "3,8,134,,32,120\n"  # 1 + 3 + 4
        "2,8,,,32,120\n"  # two nodes of four
        ",16,,8,32,130\n"  # two nodes of eight
        ",6,4,,32,130\n"  # nodes of four: two of them
        ",4,,,32,110\n",  # one node
    )
    assert [row.placement for row in read_step_table(path)] == [
        Placement(1, 1, 1),
        Placement(8, 3, 4),
        Placement(8, 2, 4),
        Placement(16, 2, 8),
        Placement(6, 2, 4),
        Placement(4, 1, 4),
    ]


def test_units_and_what_tells_rows_apart(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        "model,ranks,batch_per_rank,step_ms,sync_ms,strategy\na,1,8,97,,single\na,1,8,100,,ddp\nb,2,8,103.5,4,ddp\n",
    )
    single, alone, two = read_step_table(path)
    assert (single.single, alone.single, two.single) == (True, False, False)
    assert (two.step_us, two.sync_us) == (103_500.0, 4_000.0)
    assert single.sync_us is None
    assert single.identity == alone.identity == (("model", "a"),)
    assert two.identity == (("model", "b"),)


def test_what_cannot_be_read_is_one_line_that_names_the_place(tmp_path: Path) -> None:
    cases = {
        "ranks,step_ms\n": "no rows",
        "ranks\n1\n": "has no column step_ms",
        "ranks,step_ms\n0,5\n": "line 2: ranks is '0'",
        "ranks,step_ms\n2.5,5\n": "line 2: ranks is '2.5'",
        "ranks,step_ms\n1,5\n2,-3\n": "line 3: step_ms is '-3'",
        "ranks,step_ms\n2,nan\n": "line 2: step_ms is 'nan'",
        "ranks,step_ms\n2,fast\n": "line 2: step_ms is 'fast'; give milliseconds",
        "ranks,step_ms,nodes\n2,5,3\n": "3 nodes for 2 ranks",
        "ranks,step_ms,nodes,gpus_per_node\n8,5,2,134\n": "gpus_per_node 134 names 3 nodes, nodes says 2",
        "ranks,step_ms,sync_ms\n2,5,4100\n": "line 2: sync_ms 4100 is more than step_ms 5",
        "": "is no CSV table",
    }
    for text, said in cases.items():
        with pytest.raises(DpscopeError, match=said) as refused:
            read_step_table(table(tmp_path, text))
        assert "\n" not in str(refused.value)
