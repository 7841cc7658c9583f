"""The replayed step as a Chrome trace: what overlaps is on tracks of its own."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dpscope.analysis.what_if.answers.bases import AskedBase
from dpscope.analysis.what_if.answers.output import run_answer
from dpscope.analysis.what_if.answers.own_error import OwnErrors
from dpscope.analysis.what_if.answers.replayed_trace import check_trace_name, write_replayed
from dpscope.analysis.what_if.scenarios.scenario import Scenario
from dpscope.profiling.store.errors import DpscopeError
from tests.helpers.replayed_steps import BASE, COSTS, PROFILE


def test_collectives_in_flight_together_are_on_two_tracks(tmp_path: Path) -> None:
    """Ready at 150 and 200, 20 us each as measured; at 100 us each the two workers share the link: 150-300, 200-350."""
    base = replace(BASE, profiles=(replace(PROFILE, servers=2),))
    said = run_answer(AskedBase(base, COSTS), OwnErrors(()), [({}, Scenario(transfer_factor=5.0))])
    write_replayed(said, tmp_path / "step.json")
    check_trace_name(tmp_path / "step.json")  # its own may be replaced
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    spans = [(one["pid"], one["tid"], one["ts"], one["dur"]) for one in events if one["name"] == "all_reduce"]
    assert spans == [(1, 2, 150, 20), (1, 2, 200, 20), (2, 2, 150, 150), (2, 3, 200, 150)]
    tracks = [(one["pid"], one["args"]["name"]) for one in events if one["name"] == "thread_name"]
    assert tracks == [
        *((1, "compute"), (1, "collectives")),
        *((2, "compute"), (2, "collectives"), (2, "collectives 2")),
    ]


@pytest.mark.parametrize("name", ["theirs.json", "theirs.json.gz"])
def test_a_trace_that_dpscope_did_not_write_stays(tmp_path: Path, name: str) -> None:
    said = run_answer(AskedBase(BASE, COSTS), OwnErrors(()), [({}, Scenario(transfer_factor=5.0))])
    (tmp_path / name).write_bytes(b'{"traceEvents": []}')
    for write in (check_trace_name, lambda path: write_replayed(said, path)):
        with pytest.raises(DpscopeError, match=f"{name} was not written by dpscope, which does not overwrite it"):
            write(tmp_path / name)
    assert (tmp_path / name).read_bytes() == b'{"traceEvents": []}'
