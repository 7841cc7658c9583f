"""torchrun as `dpscope attach` starts it: where a signal ends it, status 128 + its number and no traceback."""

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main


def run() -> None:
    """Be torchrun; it ends its processes before it raises what a signal makes it raise."""
    try:
        main()
    except SignalException as error:
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    run()
