"""The command's entry point: versions, and errors of the system."""

import importlib.metadata
from pathlib import Path

import pytest

from dpscope.launch import cli


def test_versions_where_a_package_has_no_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", absent)
    monkeypatch.setattr(cli, "Path", lambda folder: Path("/nowhere"))  # no records of distributions
    import typer

    assert cli._installed_version("typer") == typer.__version__
    assert cli._installed_version("no_such_package") == "not installed"


def test_what_may_not_be_read_is_not_called_unwritable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    trace.touch()

    def error_line(readable: bool) -> str:
        monkeypatch.setattr("os.access", lambda *_: readable)  # a superuser may read everything
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    def denied() -> None:
        raise PermissionError(13, "Permission denied", str(trace))

    monkeypatch.setattr(cli, "app", denied)
    unreadable = f"dpscope: cannot read {trace}: Permission denied; change its permissions, or name another\n"
    assert error_line(readable=False) == unreadable
    assert error_line(readable=True) == f"dpscope: cannot write {trace}: Permission denied; choose another folder\n"
    trace.unlink()
    assert error_line(readable=False).startswith(f"dpscope: cannot write {trace}")
