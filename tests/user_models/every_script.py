"""Training scripts one after another in this rank of a job, attached to, and with `bare` each file
first as it is, with the first of its arguments: torch is loaded once.

python -m tests.user_models.every_script OUT CASES [bare]: CASES is JSON, for each name the script
with its arguments. The output and dpscope's notes go to OUT/<name>/rank<rank>.json, measurements to
OUT/<name>/run.
"""

import contextlib
import io
import json
import os
import socket
import sys
from pathlib import Path
from time import perf_counter, sleep

from dpscope.launch.attach.script import run_script
from dpscope.profiling.attached.session import Session
from dpscope.profiling.attached.settings import AttachSettings
from dpscope.profiling.store.files import write_text

WARMUP, TIMED, TRACED = 5, 8, 6
if any("aot_eager" in argument for argument in sys.argv):  # the compiler, once for all ranks
    import torch._inductor.fx_passes.post_grad  # noqa: F401


def agreed_port(written: Path) -> str:
    """A port that is free now, chosen by rank 0: one chosen before the first script may be taken by
    the time of the last.
    """
    if os.environ.get("RANK", "0") == "0":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            write_text(written, str(free.getsockname()[1]))
    while not written.exists():
        sleep(0.005)
    return written.read_text()


def printed(
    command: list[str], written_port: Path, settings: AttachSettings | None
) -> tuple[str, list[str]]:
    """What a script prints, attached to where there are settings, and what dpscope notes
    meanwhile.
    """
    os.environ["MASTER_PORT"] = agreed_port(written_port)
    notes: list[str] = []
    session = Session(settings, notes.append) if settings is not None else None
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        run_script(command, session.close if session is not None else notes.append)
    return shown.getvalue(), notes


def main() -> None:
    out, cases, with_bare = Path(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:] == ["bare"]
    rank = os.environ.get("RANK", "0")
    ran_bare: set[str] = set()
    for name, command in cases.items():
        began_s = perf_counter()
        (out / name).mkdir(parents=True, exist_ok=True)
        settings = AttachSettings(
            out / name / "run",
            " ".join(command),
            warmup_steps=WARMUP,
            steps=TIMED,
            traced_steps=TRACED,
        )
        bare = None
        if with_bare and command[0] not in ran_bare:  # a script changes sys.argv
            bare, _ = printed(command, out / name / "port_bare", None)
            ran_bare.add(command[0])
        attached, notes = printed(command, out / name / "port_attached", settings)
        result = {
            "bare": bare,
            "attached": attached,
            "notes": notes,
            "seconds": perf_counter() - began_s,
        }
        (out / name / f"rank{rank}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
