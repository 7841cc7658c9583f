"""Tests run outside a git checkout by default, so that no git process is started."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
