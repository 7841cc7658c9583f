"""Names in natural order, and files of earlier versions: rates in fields named gbps, all settings side by side."""

import json
import os
from pathlib import Path

import msgspec
import pytest

from dpscope.profiling.records.calibration import Calibration
from dpscope.profiling.records.config import Reporting
from dpscope.profiling.records.equality import EqualityConfig
from dpscope.profiling.records.links import LinkRate
from dpscope.profiling.records.run import Manifest
from dpscope.profiling.records.settings import settings_of
from dpscope.profiling.records.training import ResolvedTrainConfig
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.files import atomic_path, decoded, natural_order, read_json, write_json, write_together
from dpscope.profiling.store.folders import RepeatFolder, is_run_folder, remove_temporaries
from tests.helpers.paths import DATA, EXAMPLE_RUN


def test_numbers_in_names_are_counted(tmp_path: Path) -> None:
    names = ["repeat10", "repeat2", "repeat1", "rank_1_2", "rank_1_10", "a10b2", "a10b10", "a9"]
    expected = ["a9", "a10b2", "a10b10", "rank_1_2", "rank_1_10", "repeat1", "repeat2", "repeat10"]
    assert [path.name for path in sorted(map(Path, names), key=natural_order)] == expected
    folder = RepeatFolder(tmp_path)
    (tmp_path / "traces").mkdir()
    for rank in (10, 2, 0):
        folder.trace_path(0, rank).touch()
    assert folder.traces() == [folder.trace_path(0, rank) for rank in (0, 2, 10)]


def test_a_calibration_of_an_earlier_dpscope_is_read_whole(tmp_path: Path) -> None:
    """The expected numbers are in the file under "gbps", "nvlink_gbps" and "bandwidth_gbps"."""
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"gbps": 25.0, "name": "a", "source": "b", "lanes": 4}', "unknown field `lanes`"),
        (
            "[" * 100_000,
            "is not a LinkRate .*nested too deeply",
        ),  # deeper than any interpreter can follow, as in an attack
    ],
)
def test_a_file_that_does_not_fit_is_refused_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text('{"gbps": 25.0, "name": "a", "source": "b"}')
    assert read_json(tmp_path / "manifest.json", LinkRate).gb_per_s == 25.0
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(DpscopeError, match=message) as raised:
        read_json(tmp_path / "manifest.json", LinkRate)
    assert "\n" not in str(raised.value)
    assert not is_run_folder(tmp_path)


FLAT = json.loads((EXAMPLE_RUN / "manifest.json").read_text())


class _Trained(msgspec.Struct):
    config: ResolvedTrainConfig


class _Compared(msgspec.Struct):
    config: EqualityConfig


def test_every_setting_of_the_example_run_is_read_and_stored_in_parts() -> None:
    manifest = decoded(json.dumps(FLAT).encode(), Manifest)
    read = json.loads(msgspec.json.encode(settings_of(manifest.config)))
    assert {name: read[name] for name in FLAT["config"]} == FLAT["config"]
    assert decoded(msgspec.json.encode(manifest), Manifest) == manifest


def test_later_settings_were_also_stored_side_by_side() -> None:
    later = {
        "amp_variants": ["bf16"], "ddp_args": ["default", "batched_grad_copy=true"], "comm_hook": ["none", "powersgd"],
        "calibrate": False, "link": "100Gb/s", "target_efficiency": 0.8,
    }  # fmt: skip
    config = decoded(json.dumps({**FLAT, "config": {**FLAT["config"], **later}}).encode(), Manifest).config
    assert (config.matrix.amp_variants, config.matrix.comm_hook) == (("bf16",), ("none", "powersgd"))
    assert config.matrix.ddp_args == ("default", "batched_grad_copy=true")
    assert (config.measurement.calibrate, config.reporting) == (False, Reporting("100Gb/s", 0.8))


def test_a_training_stored_the_settings_shared_with_a_run_under_run() -> None:
    run = {**FLAT["config"], "seed": 0, "timeout_s": 60.0, "learning_rate": 0.2}
    stored = {"config": {"run": run, "epochs": 7, "seeds": [1, 2]}}
    config = decoded(json.dumps(stored).encode(), _Trained).config
    # run.epochs, of a measurement, is null and must not replace the training's.
    assert (config.epochs, config.seeds, config.timeout_s) == (7, (1, 2), 60.0)
    assert (config.optimizer.learning_rate, config.matrix.devices) == (0.2, (1, 2))


def test_a_comparison_of_strategies_stored_a_runs_settings() -> None:
    config = decoded(json.dumps({"config": FLAT["config"]}).encode(), _Compared).config
    assert (config.steps, config.timeout_s, config.matrix.batch_sizes) == (10, 900.0, (8,))


@pytest.mark.parametrize("name", ["invented", "workload"])
def test_settings_of_no_version_are_refused(name: str) -> None:
    stored = {**FLAT, "config": {**FLAT["config"], name: 1}}
    with pytest.raises(msgspec.ValidationError):
        decoded(json.dumps(stored).encode(), Manifest)


@pytest.mark.parametrize(
    ("umask", "file_mode", "folder_mode"),
    [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o027, 0o640, 0o750), (0o002, 0o664, 0o775)],
)
def test_files_and_folders_keep_the_umask(tmp_path: Path, umask: int, file_mode: int, folder_mode: int) -> None:
    before = os.umask(umask)
    try:
        write_json(tmp_path / "run" / "result.json", {})
        write_together({tmp_path / "run" / "report" / "a.csv": b"", tmp_path / "run" / "report" / "b.html": ""})
        with atomic_path(tmp_path / "run" / "trace.gz") as temporary:
            temporary.write_bytes(b"")
        write_json(tmp_path / "run" / "secret.json", {}, mode=0o600)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*")}
    files = dict.fromkeys(("result.json", "a.csv", "b.html", "trace.gz"), file_mode)
    assert modes == {**files, "secret.json": 0o600, "report": folder_mode}


def test_what_a_killed_process_was_writing_is_recognised_as_a_temporary_file(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "result.json") as temporary:
        remove_temporaries(tmp_path)
        assert not temporary.exists()
        temporary.touch()
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]
