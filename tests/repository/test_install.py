"""`make demo` and `make test` install by uv from where pip is set to install from."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.helpers.paths import ROOT

_SCRIPT = ROOT / ".ci" / "install.py"
# Stands for pip and uv: notes its arguments and the certificates that it was given.
_RECORDER = """#!/bin/sh
echo "$SSL_CERT_FILE $*" >> "$RECORDED"
case "$*" in
*"config list"*)
  echo ":env:.find-links='/a /b'"
  echo "global.index-url='https://mirror/simple'"
  echo "global.cert='/ca.pem'" ;;
*"uv pip install"*) exit "$UV_STATUS" ;;
esac
"""


def _script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, uv_status: int) -> ModuleType:
    python = tmp_path / "python"
    python.write_text(_RECORDER)
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    monkeypatch.setenv("RECORDED", str(tmp_path / "calls"))
    monkeypatch.setenv("UV_STATUS", str(uv_status))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    specification = importlib.util.spec_from_file_location("install", _SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.process
def test_uv_installs_from_pips_indexes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _script(monkeypatch, tmp_path, uv_status=0).main("pins.txt", "digits,dev") == 0
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert last.startswith("/ca.pem -m uv pip install --python ")
    assert "--default-index https://mirror/simple --find-links /a --find-links /b" in last
    assert last.endswith("--constraint pins.txt --editable .[digits,dev]")


@pytest.mark.process
def test_pip_installs_where_uv_cannot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _script(monkeypatch, tmp_path, uv_status=1).main("pins.txt", "digits") == 0
    last = (tmp_path / "calls").read_text().splitlines()[-1]
    assert " -m pip install " in last
    assert last.endswith("--constraint pins.txt --editable .[digits]")
