"""One process of a script that is measured as it is; run it under torchrun, or alone.

torchrun --nproc-per-node=4 -m dpscope.launch.attach --out runs/mine train.py --their --arguments
"""

import os
import sys

from dpscope.launch.attach.arguments import attachment
from dpscope.profiling.store.errors import DpscopeError


def main() -> None:
    """Measure the script that the arguments name, in this process."""
    try:
        attached = attachment(sys.argv[1:])
    except DpscopeError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            sys.stderr.write(f"dpscope: {error}\n")
        sys.exit(2)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the tracer's progress notes are not the script's
    from dpscope.launch.attach.script import run_script
    from dpscope.profiling.attached.session import Session
    from dpscope.profiling.attached.watch import Active

    session = Active.session = Session(attached.settings, _note)
    session.listen()
    run_script(attached.command, session.close)


def _note(text: str) -> None:
    sys.stderr.write(f"dpscope: {text}\n")


if __name__ == "__main__":
    main()
