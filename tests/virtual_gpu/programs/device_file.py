"""dpscope where NVML knows no GPU and a device file stands for one, as on a Jetson or with ROCm under
WSL: here /dev/null.
"""

from pathlib import Path

from dpscope.launch import contents
from dpscope.launch.jobs import devices

if __name__ == "__main__":
    assert devices.present_gpus() is None
    null = Path("/dev/null")
    devices._DEVICE_FILES = (null, null, null)
    contents.app()
