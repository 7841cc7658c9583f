"""What a report says of the setting: the nodes of a run over several, and how they reach each other."""

from dataclasses import replace

import msgspec

from dpscope.analysis.report.setting import environment_facts
from dpscope.analysis.runs.run_data import load_run
from dpscope.profiling.records.run import Host
from tests.helpers.paths import EXAMPLE_RUN


def test_nodes_are_told_with_their_way_to_each_other() -> None:
    run = load_run(EXAMPLE_RUN)
    assert [name for name, _ in environment_facts(run) if name.startswith("Node ")] == []
    hosts = (
        Host(0, "host1", "10.1.0.1", "ib0", "GLOO_SOCKET_IFNAME"),
        Host(1, "host2", "10.1.0.2", None, "the route between the nodes"),
    )
    over_two = replace(run, recorded=msgspec.structs.replace(run.manifest, hosts=hosts))
    told = dict(environment_facts(over_two))
    assert told["Node 0"] == "host1, 10.1.0.1, gloo over ib0, by GLOO_SOCKET_IFNAME"
    assert told["Node 1"] == "host2, 10.1.0.2, gloo over NA, by the route between the nodes"
