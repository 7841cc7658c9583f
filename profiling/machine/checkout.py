"""Which commit of the user's code is measured, as git tells it. Imports no torch."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dpscope.profiling.records.commit import Commit

_PATIENCE_S = 10.0  # a large checkout on a slow disk; then the commit is not known


def commit_of(folder: Path) -> Commit | None:
    """The commit that `folder` has checked out; None outside a checkout, before its first commit, and without git.

    Files that git does not track, such as run folders, do not count as changes. Nothing is written, git's index included.
    """
    if not any((place / ".git").exists() for place in (folder.absolute(), *folder.absolute().parents)):
        return None
    told = _git(folder, ["log", "-1", "--no-show-signature", "--format=%H %cI"])
    changes = _git(folder, ["status", "--porcelain", "--untracked-files=no"]) if told else None
    if not told or changes is None:
        return None
    name, _, committed_at = told.strip().partition(" ")
    return Commit(name, committed_at, changed=bool(changes.strip()))


def _git(folder: Path, arguments: Sequence[str]) -> str | None:
    """What git prints; None where it fails."""
    try:
        ended = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ended.stdout if ended.returncode == 0 else None
