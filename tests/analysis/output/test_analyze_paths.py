"""What `dpscope analyze` says of folders that it cannot read as they are."""

from pathlib import Path

import pytest

from dpscope.launch.commands.analyze import AnalyzeRequest, analyze
from dpscope.profiling.records.equality import EQUALITY_FOLDER
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import SETTINGS_NAME


def test_a_run_without_its_manifest_is_no_training(tmp_path: Path) -> None:
    (tmp_path / "cells" / "single-d1-b4").mkdir(parents=True)
    with pytest.raises(
        DpscopeError, match=f"{tmp_path}: manifest.json is missing or not dpscope's, which lists its cells"
    ):
        analyze(AnalyzeRequest(flags={}, given={}, paths=[tmp_path]))


def test_a_comparison_of_what_strategies_learn_is_no_trace(tmp_path: Path) -> None:
    (tmp_path / EQUALITY_FOLDER).mkdir()
    (tmp_path / EQUALITY_FOLDER / SETTINGS_NAME).write_text("{}")
    with pytest.raises(
        DpscopeError, match=f"dpscope equal, without traces: read {tmp_path}/equality.json or the table"
    ):
        analyze(AnalyzeRequest(flags={}, given={}, paths=[tmp_path]))
