"""A test that starts a process without its mark fails; what other packages start while they are
imported is let be.
"""

import importlib
import subprocess
from pathlib import Path

import pytest

STARTS_AT_IMPORT = """
import subprocess

def again():
    return subprocess.run(["true"], check=True)

again()
"""


def test_an_unmarked_test_starts_no_process() -> None:
    with pytest.raises(
        AssertionError,
        match=r"test_an_unmarked_test_starts_no_process starts a process \(subprocess",
    ):
        subprocess.run(["true"], check=True)


def test_what_an_import_starts_is_not_the_tests_doing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "starts_at_import.py").write_text(STARTS_AT_IMPORT)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("starts_at_import")
    with pytest.raises(AssertionError, match="mark it"):
        module.again()
