"""Training scripts one after another in this rank of a job, each as it is and then attached to: torch is loaded once.

python every_script.py OUT CASES: CASES is JSON, of each a name, the script with its arguments, and two ports. What each printed
and what dpscope noted goes to OUT/<name>/rank<rank>.json, what was measured to OUT/<name>/run.
"""

import contextlib
import io
import json
import os
import sys
from pathlib import Path
from time import perf_counter

from dpscope.launch.attach.script import run_script
from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings

WARMUP, TIMED, TRACED = 5, 8, 6


def printed(command: list[str], port: str, settings: AttachSettings | None) -> tuple[str, list[str]]:
    """What a script prints, attached to where there are settings, and what dpscope notes meanwhile."""
    os.environ["MASTER_PORT"] = port
    notes: list[str] = []
    session = Session(settings, notes.append) if settings is not None else None
    if session is not None:
        session.listen()
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        run_script(command, session.close if session is not None else notes.append)
    return shown.getvalue(), notes


def main() -> None:
    out, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
    rank = os.environ.get("RANK", "0")
    for name, (command, ports) in cases.items():
        began_s = perf_counter()
        settings = AttachSettings(
            out / name / "run", " ".join(command), warmup_steps=WARMUP, steps=TIMED, traced_steps=TRACED
        )
        bare, _ = printed(command, ports[0], None)
        attached, notes = printed(command, ports[1], settings)
        told = {"bare": bare, "attached": attached, "notes": notes, "seconds": perf_counter() - began_s}
        (out / name).mkdir(exist_ok=True)
        (out / name / f"rank{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()
