"""The commit of the code that is measured, of real checkouts."""

import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dpscope.profiling.machine.checkout import commit_of
from dpscope.profiling.records.commit import Commit

ASKED = "2030-05-06T07:08:09+02:00"
NAME = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "commit.gpgsign=false")


@pytest.mark.process
def test_the_commit_is_told_and_whether_tracked_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_COMMITTER_DATE", ASKED)

    def git(*arguments: str) -> str:
        ended = subprocess.run(["git", *NAME, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return ended.stdout.strip()

    inside = tmp_path / "project" / "models"
    inside.mkdir(parents=True)
    code = inside / "net.py"
    code.write_text("layers = 18\n")
    git("init", "--quiet")
    assert commit_of(inside) is None, "nothing is committed yet"
    git("add", ".")
    git("commit", "--quiet", "--message", "A net")

    told = commit_of(inside)
    assert told == Commit(git("rev-parse", "HEAD"), ASKED, changed=False)
    assert datetime.fromisoformat(told.committed_at) == datetime(2030, 5, 6, 5, 8, 9, tzinfo=UTC)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "manifest.json").write_text("{}")
    assert commit_of(inside) == told, "what git does not track is no change"
    code.write_text("layers = 34\n")
    assert commit_of(inside) == Commit(told.name, ASKED, changed=True)
    assert str(commit_of(inside)) == f"commit {told.name[:10]}, changed"
    monkeypatch.setenv("PATH", str(inside))  # without git
    assert commit_of(inside) is None


def test_outside_a_checkout_nothing_is_asked(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
