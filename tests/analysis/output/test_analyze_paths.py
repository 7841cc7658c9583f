"""What `dpscope analyze` says of folders that it cannot read as they are."""

from pathlib import Path

import pytest

from dpscope.launch.commands.analyze import AnalyzeRequest, analyze
from dpscope.profiling.records.equality import EQUALITY_FOLDER
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import SETTINGS_NAME


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            "cells/single-d1-b4/samples.json",
            "{}: manifest.json is missing or not dpscope's, which lists its cells",
        ),
        (
            f"{EQUALITY_FOLDER}/{SETTINGS_NAME}",
            "dpscope equal, without traces: read {}/equality.json or the table",
        ),
    ],
)
def test_what_is_no_folder_of_traces_is_named(tmp_path: Path, made: str, message: str) -> None:
    (tmp_path / made).parent.mkdir(parents=True)
    (tmp_path / made).write_text("{}")
    with pytest.raises(DpscopeError, match=message.format(tmp_path)):
        analyze(AnalyzeRequest(flags={}, given={}, paths=[tmp_path]))
