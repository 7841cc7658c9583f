"""Imported first by every Python process that a test starts: importing torch and ending take a third less CPU time.

Each of these processes lives for seconds and imports torch, whose 300,000 objects live as long as it does. At Python's own
thresholds the garbage collector visits them dozens of times during the import and again at exit.
"""

import atexit
import gc

gc.set_threshold(200_000, 20, 20)
atexit.register(gc.freeze)
