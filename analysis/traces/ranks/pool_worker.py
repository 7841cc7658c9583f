"""One process of `process_pool`, started by path: does the work it receives until its connection
closes. Standard library alone.

It runs nothing of the calling program's: neither a copy of its memory, threads and handlers (as a
fork would be), nor its main module again (as multiprocessing's spawn would).
"""

import ctypes
import gc
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def serve(connection: Connection) -> None:
    """Answer calls, each `(function, item)`, with `(True, result)` or `(False, exception)`, until
    the other end is closed.

    The caller's `sys.path` comes first: functions are sent as names, which are imported here.
    """
    sys.path[:] = connection.recv()
    while True:
        try:
            function, item = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, function(item))
        except Exception as error:  # whatever it is, the caller raises it
            error.add_note("".join(traceback.format_exception(error)))
            answer = (False, error)
        connection.send(answer)


def die_with_caller(caller_id: int) -> None:
    """Have the kernel kill this process when its caller dies, and end at once when it has;
    elsewhere than Linux `serve` ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != caller_id:
        os._exit(1)


if __name__ == "__main__":
    die_with_caller(int(sys.argv[2]))
    # as the command line does: events are many objects and hold no cycles
    gc.set_threshold(100_000)
    serve(Connection(int(sys.argv[1])))
