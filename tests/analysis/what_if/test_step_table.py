"""Tables of measured steps: what their columns mean, and what is refused."""

from pathlib import Path

import pytest

from dpscope.analysis.what_if.step_table import read_step_table, series_of
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
        ",6,4.0,,32,130\n"  # nodes of four: two of them
        ",4,,,32,110\n",  # one node
    )
    assert [(row.ranks, row.nodes, row.most_per_node) for row in read_step_table(path)] == [
        (1, 1, 1),
        (8, 3, 4),
        (8, 2, 4),
        (16, 2, 8),
        (6, 2, 4),
        (4, 1, 4),
    ]


def test_units_and_settings(tmp_path: Path) -> None:
    text = "model,ranks,batch_per_rank,step_ms,sync_ms,strategy\na,1,8,97,,single\na,1,8,100,,ddp\nb,2,8,103.5,4,ddp\n"
    single, alone, two = read_step_table(table(tmp_path, text))
    assert (single.single, alone.single, two.single) == (True, False, False)
    assert (two.step_us, two.sync_us) == (103_500.0, 4_000.0)
    assert single.sync_us is None
    assert single.identity == alone.identity == (("model", "a"),)
    assert two.identity == (("model", "b"),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ranks,step_ms\n", "has headings but no rows"),
        ("ranks\n1\n", "has no column step_ms (found: ranks)"),
        ("ranks,step_s\n2,0.1\n", "give each step's time in milliseconds"),
        ("ranks,step_ms\n0,5\n", "row 2, column ranks: '0' is not a whole number"),
        ("ranks,step_ms\n1,5\n2,-3\n", "row 3, column step_ms: '-3' is not milliseconds above 0"),
        ("ranks,step_ms\n2,nan\n", "row 2, column step_ms: 'nan' is empty"),
        ("ranks,step_ms\n2,fast\n", "row 2, column step_ms: 'fast' is not a number"),
        (
            "ranks,step_ms,nodes,ranks_per_node\n8,5,2,2\n",
            "nodes: '2' cannot hold 8 ranks: each node has at least one, at most 2",
        ),
        (
            "ranks,step_ms,nodes,gpus_per_node\n8,5,2,134\n",
            "column gpus_per_node: '134' does not match ranks and nodes",
        ),
        ("ranks,step_ms,gpus_per_node\n8,5,4+4\n", "'4+4' does not match ranks and nodes; give a digit per node"),
        ("ranks,step_ms,strategy\n2,5,single\n", "row 2, column ranks: '2' for strategy single; single is one device"),
        ("ranks,step_ms,sync_ms\n2,5,4100\n", "column sync_ms: '4100' is more than step_ms 5"),
        ("", "is empty"),
        ("ranks,step_ms\n\n# two devices\n2,5,7\n", "row 4: 3 cells under 2 headings"),
        ('ranks,step_ms\n2,"5\n', "check its quotes"),
        ("rank,step_ms\n1,1\n", "no column ranks (found: 'rank, step_ms'); did you mean 'rank' for ranks?"),
        ("ranks,step_ms,batch_per_rnk\n1,1,1\n", "column batch_per_rnk is no measure; did you mean batch_per_rank?"),
    ],
)
def test_an_unreadable_table_is_one_line_that_names_the_place(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(DpscopeError) as refused:
        read_step_table(table(tmp_path, text))
    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)


def test_tables_as_other_programs_save_them(tmp_path: Path) -> None:
    # Line ends, a byte order mark, semicolons with decimal commas, tabs, spaces and capitals in headings, blank lines, quotes.
    (plain,) = read_step_table(table(tmp_path, "ranks,batch_per_rank,step_ms\n2,8,103.5\n"))
    for text in (
        "ranks,batch_per_rank,step_ms\r\n2,8,103.5\r\n",
        "\ufeffranks,batch_per_rank,step_ms\n2,8,103.5\n",
        "ranks;batch_per_rank;step_ms\n2;8;103,5\n",
        "ranks\tbatch_per_rank\tstep_ms\n2\t8\t103.5\n",
        " Ranks , Batch_per_rank , STEP_MS \n\n 2 , 8.0 , 103.5 ,\n\n",
        '"ranks","batch_per_rank","step_ms"\n"2","8","103.5"\n',
        "ranks,batch_per_rank,step_ms,sync_ms,nodes\n2,8,103.5,NA,nan\n",
    ):
        assert read_step_table(table(tmp_path, text)) == [plain], text


def test_times_may_be_missing_where_they_are_not_needed(tmp_path: Path) -> None:
    path = table(tmp_path, "ranks,step_ms\n2,\n4,NA\n8,105\n")
    assert [row.step_us for row in read_step_table(path, times=False)] == [0.0, 0.0, 105e3]
    path = table(tmp_path, "ranks\n2\n")
    assert [row.ranks for row in read_step_table(path, times=False)] == [2]


def test_columns_that_hold_results_separate_no_series(tmp_path: Path) -> None:
    # A run's number and a measured rate differ in every row; the model is what the rows are of.
    text = "run,rate,model,ranks,step_ms\n1,9.5,a,1,100\n2,9.1,a,2,104\n3,8.8,b,1,50\n4,8.2,b,2,52\n"
    rows = read_step_table(table(tmp_path, text))
    assert list(series_of(rows)) == [(("model", "a"),), (("model", "b"),)]


def test_one_device_without_a_network_is_of_every_network(tmp_path: Path) -> None:
    text = "network,ranks,step_ms\n,1,100\nslow,2,140\nslow,4,160\nfast,2,104\nfast,4,105\n"
    found = series_of(read_step_table(table(tmp_path, text)))
    assert [dict(name)["network"] for name in found] == ["slow", "fast"]
    assert [[row.ranks for row in mine] for mine in found.values()] == [[1, 2, 4], [1, 2, 4]]


def test_each_strategy_is_a_series(tmp_path: Path) -> None:
    rows = read_step_table(table(tmp_path, "strategy,ranks,step_ms\nsingle,1,100\nddp,2,104\nfsdp,2,130\n"))
    found = series_of(rows)
    assert sorted(dict(name).get("strategy", "ddp") for name in found) == ["ddp", "fsdp"]
    assert all(mine[0].step_us == 100e3 for mine in found.values())


def test_a_setting_that_resembles_no_measure_stays_one(tmp_path: Path) -> None:
    path = table(tmp_path, "ranks,step_ms,network,batch_policy\n1,5,eth,a\n")
    assert dict(read_step_table(path)[0].identity) == {"network": "eth", "batch_policy": "a"}
