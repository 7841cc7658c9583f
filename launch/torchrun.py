"""torchrun whose store listens at one address: loopback for one node, node 0's address for several.

    python -m dpscope.launch.torchrun --nproc-per-node=4 train.py python -m dpscope.launch.torchrun
    --nnodes=2 --node-rank=0 --master-addr=host0 --master-port=29501 --nproc-per-node=4 train.py

torch's own rendezvous listen on all interfaces, and the store has no authentication. Without a port torchrun, as with
--standalone, even unpickles what it finds there: a stranger who reaches the port runs code. This rendezvous is static, so that
nothing is unpickled. All other options are torchrun's.
"""

import argparse
import gc
import ipaddress
import os
import sys
import uuid

if __name__ == "__main__":
    gc.disable()  # its searches take a seventh of torch's import, whose objects are all kept

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # of torch._C
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousInfo, rendezvous_handler_registry
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous
from torch.distributed.run import get_args_parser, parse_min_max_nnodes
from torch.distributed.run import run as run_torchrun

from dpscope.profiling.machine.interfaces import (
    LOOPBACK_ADDRESS,
    LOOPBACK_INTERFACE,
    listening_socket,
)

_BACKEND = "dpscope"  # its name among torchrun's rendezvous
_JOIN_S = 600  # for all nodes, as torchrun's static rendezvous
_SEVERAL_NODES_PORT = 29500  # torchrun's default


class _OneAddress(StaticTCPRendezvous):
    """The static rendezvous with a store that only listens at the first node's address.

    Its base class and the store's `master_listen_fd` are the same in torch 2.8.0 and 2.14.1.
    """

    def get_backend(self) -> str:
        return _BACKEND

    def next_rendezvous(self) -> RendezvousInfo:
        if self._store is None and self.rank == 0:
            with listening_socket(self.master_addr, self.master_port) as listener:
                host, self.master_port = listener.getsockname()[:2]
                if not ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
                    self.master_addr = host
                self._store = TCPStore(
                    self.master_addr,
                    self.master_port,
                    self.world_size,
                    True,
                    self.timeout,
                    master_listen_fd=listener.detach(),
                )
        return super().next_rendezvous()


def main() -> None:
    """Run torchrun; ended by a signal, exit with status 128 + its number. Neither this nor the
    failure of a rank, which has printed its own, leaves a traceback of torchrun's.
    """
    for name in [
        variable
        for variable in os.environ
        if variable == "PET_STANDALONE" or variable.startswith("PET_RDZV_")
    ]:
        del os.environ[name]  # a launcher's defaults for options that are decided here
    parser = get_args_parser()
    arguments = parser.parse_args()
    if arguments.standalone or arguments.rdzv_endpoint or arguments.rdzv_backend != "static":
        parser.error(
            "omit --standalone and --rdzv-...; give --nnodes, --node-rank, --master-addr on several nodes"
        )
    if arguments.start_method == "fork":
        import torch._dynamo  # noqa: F401 (a rank's optimizer imports it)
    gc.freeze()  # never visited again: not in ranks that are forks, nor as this process ends
    gc.enable()
    try:
        _run(arguments)
    except SignalException as error:  # torchrun has ended its processes
        sys.exit(128 + error.sigval)
    except ChildFailedError as error:
        sys.exit(str(error))  # which ranks failed, and with what status


def _run(arguments: argparse.Namespace) -> None:
    count, node = parse_min_max_nnodes(arguments.nnodes)[1], arguments.node_rank
    if count > 1:
        address, port, job = (
            arguments.master_addr,
            arguments.master_port or _SEVERAL_NODES_PORT,
            arguments.rdzv_id,
        )
    else:
        address, port, job = LOOPBACK_ADDRESS, 0, str(uuid.uuid4())
        # By default gloo listens at the address of the host's name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK_INTERFACE)

    def rendezvous(_parameters: object) -> _OneAddress:
        return _OneAddress(address, port, node, count, job, _JOIN_S)

    rendezvous_handler_registry.register(_BACKEND, rendezvous)
    arguments.rdzv_backend, arguments.rdzv_endpoint, arguments.rdzv_id = (
        _BACKEND,
        f"{address}:{port}",
        job,
    )
    # torchrun warns about a rank that its static rendezvous alone would use
    arguments.node_rank = 0
    run_torchrun(arguments)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
