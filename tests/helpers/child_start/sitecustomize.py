"""Imported first by every Python process that a test starts: importing torch and ending take a third less CPU time.

Each of these processes lives for seconds and imports torch, whose 300,000 objects live as long as it does. At Python's own
thresholds the garbage collector visits them dozens of times during the import and again at exit.

Within `light_jobs` torchrun becomes tests/helpers/light_torchrun.py.
"""

import atexit
import gc
import os
import sys

gc.set_threshold(200_000, 20, 20)
atexit.register(gc.freeze)

if (
    "DPSCOPE_TEST_LIGHT_TORCHRUN" in os.environ
    and sys.orig_argv[1:4] == ["-m", "torch.distributed.run", "--standalone"]
    and "--max-restarts=0" in sys.orig_argv
):
    light = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "light_torchrun.py")
    os.execv(sys.executable, [sys.executable, light, *sys.orig_argv[3:]])
