"""tinyprop, and what it is compared with; PyTorch is imported only in a process of its own."""

from importlib.util import find_spec

from .peer import Peer
from .tinyprop import Tinyprop
from .torch import Torch, TorchChannelsLast

PEERS: dict[str, type[Peer]] = {
    "tinyprop": Tinyprop,
    "torch": Torch,
    "torch-channels-last": TorchChannelsLast,
}
TORCH = [name for name in PEERS if name != "tinyprop"]


def is_installed(peer: str) -> bool:
    return find_spec(PEERS[peer].package) is not None
