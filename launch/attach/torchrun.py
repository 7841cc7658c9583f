"""torchrun for `dpscope attach`: ended by a signal, it exits with status 128 + its number and without a traceback."""

import sys

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.run import main


def run() -> None:
    """Run torchrun, which ends its processes before it raises SignalException."""
    try:
        main()
    except SignalException as error:
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    run()
