"""The process group over which weights travel from the policy's trainer to vLLM's workers."""

from datetime import timedelta
from typing import Any

from torch import Tensor, distributed

SYNC_TIMEOUT = timedelta(minutes=5)


class GlooGroup:
    """Broadcasts weights from trainer to engines over gloo, by the calls of vLLM's PyNcclCommunicator."""

    def __init__(self, host: str, port: int, rank: int, world_size: int) -> None:
        self.store = distributed.TCPStore(
            host, port, world_size, is_master=rank == 0, timeout=SYNC_TIMEOUT, wait_for_workers=False
        )
        prefixed = distributed.PrefixStore("weights", self.store)
        self.group: Any = distributed.ProcessGroupGloo(prefixed, rank, world_size, SYNC_TIMEOUT)

    def broadcast(self, tensor: Tensor, src: int, stream: Any = None) -> None:
        """Send `tensor` from rank `src`, or receive into it (contiguous then); returns when that is done."""
        options = distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self.group.broadcast([tensor.contiguous()], options).wait()


def weight_group(host: str, port: int, rank: int, world_size: int, device: Any, *, backend: str) -> Any:
    """Joins the group as `rank`; `backend` is "nccl" (OpenRLHF's own group, a GPU each) or "gloo"."""
    if backend == "gloo":
        return GlooGroup(host, port, rank, world_size)
    from openrlhf.utils.distributed_util import stateless_init_process_group

    return stateless_init_process_group(host, port, rank, world_size, device)
