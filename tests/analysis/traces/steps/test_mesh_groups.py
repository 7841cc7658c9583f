"""HSDP's collectives in traces of gloo: in which group each ran, told by the header, by kind and by size; near misses untold."""

import json
from pathlib import Path

import pytest

from dpscope.analysis.traces.reading.event_table import CommunicationArgs, ProcessGroup
from dpscope.analysis.traces.reading.reader import read_trace
from dpscope.analysis.traces.steps.collectives import NamedCollective, in_mesh

ALL = ProcessGroup("0", "default_pg", (0, 1, 2, 3))
ACROSS = ProcessGroup("1", "mesh_replicate", (0, 2))
WITHIN = ProcessGroup("3", "mesh_shard", (0, 1))
GROUPS = (ALL, ACROSS, WITHIN)
GATHER: NamedCollective = (CommunicationArgs(input_elements=35, output_elements=70), "all_gather")
SCATTER: NamedCollective = (CommunicationArgs(input_elements=88, output_elements=44), "reduce_scatter")
REDUCE: NamedCollective = (CommunicationArgs(input_elements=44), "all_reduce")


def places(
    told: list[NamedCollective], groups: tuple[ProcessGroup, ...] = GROUPS
) -> list[tuple[str | None, str | None, int | None]]:
    return [(args.group, args.group_ranks, args.group_size) for args, _ in in_mesh(told, groups)]


def test_shards_move_within_a_group_and_their_sums_between_groups() -> None:
    within, across = ("3", "[0, 1]", 2), ("1", "[0, 2]", 2)
    assert places([GATHER, SCATTER, REDUCE]) == [within, within, across]


@pytest.mark.parametrize(
    "groups",
    [
        (),
        (ALL,),
        (ALL, WITHIN),
        (ALL, ACROSS, WITHIN, ProcessGroup("5", "mine", (0, 3))),
        (ALL, ACROSS, ProcessGroup("3", "mesh_tp", (0, 1))),
    ],
)
def test_other_groups_tell_nothing(groups: tuple[ProcessGroup, ...]) -> None:
    assert places([GATHER, SCATTER, REDUCE], groups) == [(None, None, None)] * 3


def test_an_all_reduce_of_something_else_and_a_gather_over_all_ranks_stay_untold() -> None:
    loss: NamedCollective = (CommunicationArgs(input_elements=1), "all_reduce")
    over_all: NamedCollective = (CommunicationArgs(input_elements=10, output_elements=40), "all_gather")
    assert places([SCATTER, loss, over_all])[1:] == [(None, None, None)] * 2


def test_a_trace_that_names_groups_is_left_as_it_is() -> None:
    named: NamedCollective = (CommunicationArgs(input_elements=1, group="7"), "all_reduce")
    assert places([GATHER, named]) == [(None, None, None), ("7", None, None)]


def test_groups_are_read_from_the_header_but_for_those_that_are_cut_or_broken(tmp_path: Path) -> None:
    listed = [
        {"pg_name": "3", "pg_desc": "mesh_shard", "pg_size": 2, "ranks": [0, 1]},
        {"pg_name": "4", "pg_desc": "long", "pg_size": 9000, "ranks": [0, 1]},
        {"pg_name": "5", "pg_size": 1, "ranks": [0]},
        {"pg_name": "6", "pg_size": 1, "ranks": ["0"]},
        {"pg_name": 7, "pg_size": 1, "ranks": [0]},
        "none",
    ]
    header = {"distributedInfo": {"rank": 0, "world_size": 2, "pg_config": listed}}
    event = {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "ts": 1, "dur": 1, "pid": 1, "tid": 1}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**header, "traceEvents": [event]}))
    assert read_trace(path).process_groups == (WITHIN, ProcessGroup("5", None, (0,)))
