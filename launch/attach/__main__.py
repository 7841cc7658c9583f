"""One process of an unchanged script that is measured; runs under torchrun, or alone.

torchrun --nproc-per-node=4 -m dpscope.launch.attach --out runs/mine train.py --its --arguments
"""

import contextlib
import os
import sys
from pathlib import Path

from dpscope.launch.jobs.parent_death import JOB_TOKEN_VARIABLE, die_with_job

# a process started by hand may outlive its shell
if __name__ == "__main__" and "TORCHELASTIC_RUN_ID" in os.environ:
    die_with_job()

from dpscope.launch.attach.arguments import attachment
from dpscope.launch.jobs.out_folder import locked
from dpscope.profiling.attached.settings import print_note
from dpscope.profiling.store.errors import DpscopeError
from dpscope.profiling.store.folders import COLLECTIVES_NAME


def main() -> None:
    lock = contextlib.ExitStack()
    try:
        attached = attachment(sys.argv[1:])
        by_hand = JOB_TOKEN_VARIABLE not in os.environ  # else `dpscope attach` holds the lock
        if by_hand and os.environ.get("RANK", "0") == "0":
            lock.enter_context(locked(attached.settings.out, wait=False, note=print_note))
    except DpscopeError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            print_note(str(error))
        sys.exit(2)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # without the tracer's progress notes
    from dpscope.launch.attach.script import run_script
    from dpscope.profiling.attached.session import Session
    from dpscope.profiling.attached.watch import Active

    recorder = None
    if attached.settings.record_collectives:
        from dpscope.profiling.instruments.collective_records import CollectiveRecorder

        rank = int(os.environ.get("RANK", "0"))
        recorder = CollectiveRecorder(_records_folder(attached.settings.out), rank, print_note)
    session = Active.session = Session(attached.settings, print_note)

    def close(how: str) -> None:
        session.close(how)
        if recorder is not None:
            recorder.close()

    with lock:
        try:
            run_script(attached.command, close, attached.work_folder)
        except SystemExit as ended:
            if ended.code or not session.incomplete:
                raise
        if session.incomplete:  # the script's own status is 0
            sys.exit(1)


def _records_folder(out: Path) -> Path:
    """Of this job, which may not be measured: no cell's."""
    job = os.environ.get(JOB_TOKEN_VARIABLE) or os.environ.get("MASTER_PORT", "0")
    name = f"{os.environ.get('WORLD_SIZE', '1')}-processes-{job[:8]}"
    return out / COLLECTIVES_NAME / name


if __name__ == "__main__":
    main()
