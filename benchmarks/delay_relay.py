"""A link with a delay between two hosts: `python delay_relay.py NAMESPACE NAMESPACE DELAY_MS` until
its standard input ends.

The kernel's own way, netem, is not in every kernel. A TUN device in each namespace (10.199.9.1 and
.2); what one sends is kept for the delay and given to the other. Prints a line once both are there.
"""

import ctypes
import fcntl
import heapq
import os
import select
import struct
import subprocess
import sys
import time

_SET_INTERFACE, _TUN, _WITHOUT_HEADER = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
_PACKET_BYTES = 1 << 16
DEVICE = "late0"


def _device(namespace: str, number: int) -> int:
    """A TUN device in a namespace, which this thread enters for it, with its address."""
    entered = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    assert ctypes.CDLL(None, use_errno=True).setns(entered, 0) == 0, os.strerror(ctypes.get_errno())
    os.close(entered)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(
        device, _SET_INTERFACE, struct.pack("16sH", DEVICE.encode(), _TUN | _WITHOUT_HEADER)
    )
    addresses = (f"10.199.9.{number}/24", "dev", DEVICE)
    for words in (("addr", "add", *addresses), ("link", "set", DEVICE, "mtu", "9000", "up")):
        subprocess.run(["ip", *words], check=True)
    return device


def _relay(devices: list[int], delay_s: float) -> None:
    kept: list[
        tuple[float, int, int, bytes]
    ] = []  # when it is due, in which order it came, to which device, the packet
    count = 0
    while True:
        wait_s = max(0.0, kept[0][0] - time.monotonic()) if kept else 1.0
        ready, _, _ = select.select([*devices, 0], [], [], wait_s)
        if 0 in ready and not os.read(0, 1):
            return
        for index, device in enumerate(devices):
            while device in ready:
                try:
                    packet = os.read(device, _PACKET_BYTES)
                except BlockingIOError:
                    break
                count += 1
                heapq.heappush(
                    kept, (time.monotonic() + delay_s, count, devices[1 - index], packet)
                )
        while kept and kept[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(kept)
            os.write(device, packet)


if __name__ == "__main__":
    both = [_device(namespace, number) for number, namespace in enumerate(sys.argv[1:3], start=1)]
    sys.stdout.write("relaying\n")
    sys.stdout.flush()
    _relay(both, float(sys.argv[3]) / 1e3)
