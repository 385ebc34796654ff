"""The frameworks that are compared, one file each; a framework is imported only in a process of its
own."""

from importlib.util import find_spec

from .autograd import Autograd
from .jax import Jax
from .mygrad import MyGrad
from .peer import Peer
from .tinyprop import Tinyprop
from .torch import Torch, TorchChannelsLast, TorchThreads

PEERS: dict[str, type[Peer]] = {
    "tinyprop": Tinyprop,
    "torch": Torch,
    "torch-channels-last": TorchChannelsLast,
    "torch-in-parts": TorchThreads,
    "jax": Jax,
    "autograd": Autograd,
    "mygrad": MyGrad,
}


def is_installed(peer: str) -> bool:
    return find_spec(PEERS[peer].package) is not None
