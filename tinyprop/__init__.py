"""tinyprop: a small autograd engine that builds, trains and verifies Normalization Propagation.

>>> import tinyprop as tp
>>> x = tp.tensor([1.0, 2.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([2., 4.])
"""

import sys

if sys.argv[:1] == ["-m"] and "tinyprop" in sys.orig_argv:  # `python -m tinyprop`
    from tinyprop_command import stop_quietly

    stop_quietly()  # also while the rest is imported

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from . import functional, moments, nn, optim
from .engine import moved
from .engine.arrays import use_backend
from .engine.backward import grad
from .engine.creation import arange, from_dlpack, from_numpy, full, ones, rand, randn, zeros
from .engine.errors import (
    BackendError,
    DataError,
    DivergenceError,
    EditError,
    GradientError,
    ShapeError,
    StateError,
    UnknownNameError,
)
from .engine.graph import Op, no_grad
from .engine.overrides import overrides, plain
from .engine.random import manual_seed
from .engine.tensor import Tensor, tensor
from .functional.activation import Activation, activations
from .functional.derivatives import hessian, jacobian, jvp
from .functional.draw import draw
from .nn.observation import observe

if TYPE_CHECKING:
    from . import data, testing, train, verify
    from .instruments.examine import examine
    from .nn.export import to_torch
    from .nn.pytorch import from_torch
    from .report.saving import load, save
    from .testing import check_gradients
    from .theory.design import design
    from .theory.propagate import propagate

__version__ = "0.2.0"

moved.register()
if find_spec(f"{__name__}.kernels"):  # speed is optional: without this room the rules compute
    import_module(".kernels", __name__)

__all__ = [
    "Activation",
    "BackendError",
    "DataError",
    "DivergenceError",
    "EditError",
    "GradientError",
    "Op",
    "ShapeError",
    "StateError",
    "Tensor",
    "UnknownNameError",
    "activations",
    "arange",
    "check_gradients",
    "data",
    "design",
    "draw",
    "examine",
    "from_dlpack",
    "from_numpy",
    "from_torch",
    "full",
    "functional",
    "grad",
    "hessian",
    "jacobian",
    "jvp",
    "load",
    "manual_seed",
    "moments",
    "nn",
    "no_grad",
    "observe",
    "ones",
    "optim",
    "overrides",
    "plain",
    "propagate",
    "rand",
    "randn",
    "save",
    "tensor",
    "testing",
    "to_torch",
    "train",
    "use_backend",
    "verify",
    "zeros",
]


_LATER = {
    "check_gradients": "testing",
    "design": "theory",
    "examine": "instruments.examine",
    "from_torch": "nn.pytorch",
    "propagate": "theory",
    "load": "report.saving",
    "save": "report.saving",
    "to_torch": "nn.export",
}


def __getattr__(name: str) -> Any:
    """What is not needed by everyone is loaded on first use."""
    if name in ("data", "testing", "theory", "train", "verify"):
        return import_module(f".{name}", __name__)
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
