"""Training scripts run one after another in the ranks of one job, as they are and attached to."""

import json
import re
import sys
from pathlib import Path

from tests.helpers.paths import ROOT, USER_MODELS
from tests.helpers.ranks import ended_ranks

SCRIPTS = USER_MODELS / "scripts"


def run_scripts(
    out: Path, commands: dict[str, str], processes: int, bare: bool = True
) -> dict[str, list[list[str]]]:
    """Run each script of SCRIPTS; returns the notes of dpscope in each rank, by name. A run folder
    is at OUT/<name>/run.

    With `bare` each file runs without dpscope, too: its output must be the same.
    """
    compared = set()
    words = {name: f"{SCRIPTS}/{command}".split() for name, command in commands.items()}
    program = "tests.user_models.every_script"
    command = [sys.executable, "-m", program, str(out), json.dumps(words)]
    command += ["bare"] if bare else []
    for status, _, errors in ended_ranks(command, processes, cwd=ROOT):
        assert status == 0, errors
    notes = {}
    for name in commands:
        found = [
            json.loads((out / name / f"rank{rank}.json").read_text()) for rank in range(processes)
        ]
        for one in found:
            if one["bare"] is not None:
                assert without_times(one["bare"]) == without_times(one["attached"])
                compared.add(words[name][0])
        notes[name] = [one["notes"] for one in found]
    assert compared == ({file for file, *_ in words.values()} if bare else set())
    return notes


def without_times(printed: str) -> str:
    return re.sub(r"after [\d.]+ s", "", printed)
