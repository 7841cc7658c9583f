"""What is planned and measured here is so outside a git checkout, as far as a test does not choose: no git is asked."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
