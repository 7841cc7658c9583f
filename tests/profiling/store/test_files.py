"""Names in the order people count; files of an earlier dpscope, whose names of rates ended in gbps."""

from pathlib import Path

import pytest

from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import natural_order, read_json, write_json
from dpscope.profiling.store.folders import RepeatFolder, is_run_folder
from tests.helpers.paths import DATA


def test_numbers_in_names_are_counted(tmp_path: Path) -> None:
    names = ["repeat10", "repeat2", "repeat1", "rank_1_2", "rank_1_10", "a10b2", "a10b10", "a9"]
    expected = ["a9", "a10b2", "a10b10", "rank_1_2", "rank_1_10", "repeat1", "repeat2", "repeat10"]
    assert [path.name for path in sorted(map(Path, names), key=natural_order)] == expected


def test_traces_of_many_ranks_are_in_their_order(tmp_path: Path) -> None:
    folder = RepeatFolder(tmp_path)
    (tmp_path / "traces").mkdir()
    for rank in (10, 2, 0):
        folder.trace_path(0, rank).touch()
    assert folder.traces() == [folder.trace_path(0, rank) for rank in (0, 2, 10)]


def test_a_calibration_of_an_earlier_dpscope_is_read_whole(tmp_path: Path) -> None:
    """Expected are the numbers that stand in the file under "gbps", "nvlink_gbps" and "bandwidth_gbps"."""
    path = DATA / "calibration_with_gbps.json"
    assert "gb_per_s" not in path.read_text()
    calibration = read_json(path, Calibration)
    assert calibration.links[8].gb_per_s == 250.0
    assert calibration.interconnect is not None
    assert [device.nvlink_gb_per_s for device in calibration.interconnect.devices] == [450.0, 450.0]
    assert [piece.bandwidth_gb_per_s for piece in calibration.fits[0].pieces][-1] == 133.76493792613147
    write_json(tmp_path / "calibration.json", calibration)
    assert "gbps" not in (tmp_path / "calibration.json").read_text().replace("--link-gbps", "")
    assert read_json(tmp_path / "calibration.json", Calibration) == calibration


def test_a_field_that_never_was_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "link.json"
    path.write_text('{"gbps": 25.0, "name": "a", "source": "b"}')
    assert read_json(path, LinkRate).gb_per_s == 25.0
    path.write_text('{"gbps": 25.0, "name": "a", "source": "b", "lanes": 4}')
    with pytest.raises(DpscopeError, match="unknown field `lanes`"):
        read_json(path, LinkRate)


def test_what_is_nested_too_deeply_is_told_in_one_line(tmp_path: Path) -> None:
    """Deeper than any interpreter follows: somebody's data, or an attack."""
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(DpscopeError, match=r"manifest\.json is not a LinkRate .*nested too deeply") as raised:
        read_json(tmp_path / "manifest.json", LinkRate)
    assert "\n" not in str(raised.value)
    assert not is_run_folder(tmp_path)
