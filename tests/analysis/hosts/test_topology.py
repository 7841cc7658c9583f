"""Files that list the switch of each host, as people and Slurm write them, and invalid ones."""

from pathlib import Path

import pytest

from dpscope.analysis.hosts.places import read_topology
from dpscope.profiling.store.errors import DpscopeError

TWO = {"n0": "s0", "n1": "s0"}


def switches_in(tmp_path: Path, text: str) -> dict[str, str]:
    path = tmp_path / "topology.conf"
    path.write_text(text)
    return read_topology(path)


@pytest.mark.parametrize(
    "text",
    [
        "n0 s0\nn1 s0\n",
        "\ufeffhost,switch\nn0,s0\nn1,s0\n",  # saved by a spreadsheet
        "n0: s0\nn1:\ts0\n",
        "n[0-1] s0\n",
        "SwitchName=s0 Nodes=n[0-1]  # left row\n",
        "switchname=s0 linkspeed=100 nodes=n0,n1\n",
        "Nodes=n[0-1] SwitchName=s0\n",
        "SwitchName=s0 \\\n  Nodes=n[0-1]\nSwitchName=core Switches=s[0-1]\n",
        'SwitchName=s0 Nodes="n[0-1]"\n',
        "BlockName=s0 Nodes=n[0-1]\nBlockSizes=2\n",
    ],
)
def test_all_forms_are_equivalent(tmp_path: Path, text: str) -> None:
    assert switches_in(tmp_path, text) == TWO


def test_names_of_several_numbers_are_all_their_hosts(tmp_path: Path) -> None:
    assert sorted(switches_in(tmp_path, "SwitchName=s0 Nodes=r[0-1]n[08-09]\n")) == ["r0n08", "r0n09", "r1n08", "r1n09"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SwitchName=s0 Nodes=n[a-b]\n", r"line 1: \[a-b\] is not a range of hosts, such as \[0-15\]"),
        ("\nSwitchName=s0 Nodes=n[5-2]\n", r"line 2: \[5-2\] is not a range"),
        ("SwitchName=s0 Nodes=n[0-999999999]\n", r"\[0-999999999\] is not a range"),  # and at once
        ("SwitchName=s0 Nodes=n[0-3\n", r"'n\[0-3' has an unmatched bracket"),
        ("n0 s0\nn0 s1\n", "line 2: n0 is on s0 and on s1; remove one"),
        ("n0 s0 rack7\n", "line 1: 'n0 s0 rack7' is not a host and its switch; write HOST SWITCH, or SwitchName"),
        ("SwitchName=s0\n", "'SwitchName=s0' is not a host and its switch"),
        ("- topology: tree\n", "is not a host and its switch"),
        ("host switch\n", "contains no host"),
        ("# n0 s0\n", "contains no host"),
    ],
)
def test_invalid_lines_are_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DpscopeError, match=message) as caught:
        switches_in(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "topology.conf").write_bytes(b"n0 \xff\xfe\n")
    with pytest.raises(DpscopeError, match="is not a text file"):
        read_topology(tmp_path / "topology.conf")
