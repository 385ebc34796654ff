"""tinyprop: a small autograd engine that builds, trains and verifies Normalization Propagation.

>>> import tinyprop as tp
>>> x = tp.tensor([1.0, 2.0], requires_grad=True)
>>> (x * x).sum().backward()
>>> x.grad
tensor([2., 4.])
"""

from . import functional, moments
from .autograd import Op, grad, jacobian, no_grad
from .backend import manual_seed, use_backend
from .draw import draw
from .errors import BackendError, GradientError, ShapeError
from .gradcheck import check_gradients
from .tensor import Tensor, tensor

__version__ = "0.1.0"

__all__ = [
    "BackendError", "GradientError", "Op", "ShapeError", "Tensor", "check_gradients", "draw", "functional", "grad",
    "jacobian", "manual_seed", "moments", "no_grad", "tensor", "use_backend",
]  # fmt: skip
