"""tinyprop: a small autograd engine that builds, trains and verifies Normalization Propagation.

>>> import tinyprop as tp
>>> x = tp.tensor([1.0, 2.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([2., 4.])
"""

from . import data, functional, moments, nn, optim, train, verify
from .engine.arrays import manual_seed, use_backend
from .engine.check import check_gradients
from .engine.draw import draw
from .engine.errors import BackendError, DataError, DivergenceError, GradientError, ShapeError, StateError
from .engine.graph import Op, grad, jacobian, no_grad
from .engine.tensor import Tensor, tensor
from .saving import load, save

__version__ = "0.1.0"

__all__ = [
    "BackendError", "DataError", "DivergenceError", "GradientError", "Op", "ShapeError", "StateError", "Tensor",
    "check_gradients", "data", "draw", "functional", "grad", "jacobian", "load", "manual_seed", "moments", "nn",
    "no_grad", "optim", "save", "tensor", "train", "use_backend", "verify",
]  # fmt: skip
