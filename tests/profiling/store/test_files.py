"""Names in natural order, and files of earlier versions: rates in fields named gbps, all settings
side by side.
"""

import json
import os
from pathlib import Path

import pytest

from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import (
    atomic_path,
    natural_order,
    read_json,
    write_json,
    write_together,
)
from dpscope.profiling.store.folders import (
    RepeatFolder,
    RunFolder,
    is_run_folder,
    remove_temporaries,
)
from tests.helpers.paths import EXAMPLE_RUN


def test_numbers_in_names_are_counted(tmp_path: Path) -> None:
    names = ["repeat10", "repeat2", "repeat1", "rank_1_2", "rank_1_10", "a10b2", "a10b10", "a9"]
    expected = ["a9", "a10b2", "a10b10", "rank_1_2", "rank_1_10", "repeat1", "repeat2", "repeat10"]
    assert [path.name for path in sorted(map(Path, names), key=natural_order)] == expected
    folder = RepeatFolder(tmp_path)
    (tmp_path / "traces").mkdir()
    for rank in (10, 2, 0):
        folder.trace_path(0, rank).touch()
    assert folder.traces() == [folder.trace_path(0, rank) for rank in (0, 2, 10)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"gb_per_s": 25.0, "name": "a", "source": "b", "lanes": 4}', "unknown field `lanes`"),
        ("[" * 100_000, "is not a LinkRate .*Expected `object`"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "manifest.json").write_text('{"gb_per_s": 25.0, "name": "a", "source": "b"}')
    assert read_json(tmp_path / "manifest.json", LinkRate).gb_per_s == 25.0
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DpscopeError, match=message) as raised:
        read_json(tmp_path / "manifest.json", LinkRate)
    assert "\n" not in str(raised.value)
    assert not is_run_folder(tmp_path)


def test_a_file_that_is_nested_too_deeply_is_refused_in_one_line(tmp_path: Path) -> None:
    """Deeper than any interpreter can follow, as in an attack."""
    head = '{"schema_version": 1, "dpscope_version": "0.2.0", "created_at": "", "config": {"a": '
    (tmp_path / "manifest.json").write_text(head + "[" * 100_000)
    assert not is_run_folder(tmp_path)
    with pytest.raises(DpscopeError, match="nested too deeply") as raised:
        RunFolder(tmp_path).manifest()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("version", ["0.1.0", "0.1.12", "0"])
def test_a_run_of_a_dpscope_before_0_2_is_refused_in_one_line(tmp_path: Path, version: str) -> None:
    """Also one whose settings this version could not read."""
    stored = json.loads((EXAMPLE_RUN / "manifest.json").read_text())
    path = tmp_path / "manifest.json"
    for config in (stored["config"], {"device": "cpu"}):
        path.write_text(json.dumps({**stored, "dpscope_version": version, "config": config}))
        assert is_run_folder(tmp_path)
        with pytest.raises(
            DpscopeError,
            match=r"manifest\.json is of a dpscope before 0\.2, .*; measure the run again$",
        ):
            RunFolder(tmp_path).manifest()
    for current in ("0.2.0", "0.10.1", "1.0"):
        path.write_text(json.dumps({**stored, "dpscope_version": current}))
        assert RunFolder(tmp_path).manifest().dpscope_version == current


@pytest.mark.parametrize(
    ("umask", "file_mode", "folder_mode"),
    [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o027, 0o640, 0o750), (0o002, 0o664, 0o775)],
)
def test_files_and_folders_keep_the_umask(
    tmp_path: Path, umask: int, file_mode: int, folder_mode: int
) -> None:
    before = os.umask(umask)
    try:
        write_json(tmp_path / "run" / "result.json", {})
        write_together(
            {tmp_path / "run" / "report" / "a.csv": b"", tmp_path / "run" / "report" / "b.html": ""}
        )
        with atomic_path(tmp_path / "run" / "trace.gz") as temporary:
            temporary.write_bytes(b"")
        write_json(tmp_path / "run" / "secret.json", {}, mode=0o600)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*")}
    files = dict.fromkeys(("result.json", "a.csv", "b.html", "trace.gz"), file_mode)
    assert modes == {**files, "secret.json": 0o600, "report": folder_mode}


def test_what_a_killed_process_was_writing_is_recognised_as_a_temporary_file(
    tmp_path: Path,
) -> None:
    with atomic_path(tmp_path / "result.json") as temporary:
        remove_temporaries(tmp_path)
        assert not temporary.exists()
        temporary.touch()
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
