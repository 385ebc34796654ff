"""Maximum and average over sliding windows, by slices: never a loop over pixels."""

from typing import Any

from ..autograd import Op
from ..backend import Array, array_module
from ..errors import ShapeError
from ..tensor import Operand, Tensor, as_tensor
from .shapes import pad
from .windows import Window


class MaxPool(Op):
    """The largest element of each window of an image without padding."""

    def __init__(self, window: Window):
        self.window = window

    def forward(self, x: Array) -> Array:
        xp = array_module(x)
        first, *rest = self.window.offsets(self.window.output(x.shape))
        out = x[(..., *first)].copy()
        for offset in rest:
            xp.maximum(out, x[(..., *offset)], out=out)
        return out

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        return Scatter(self.window, x.data, out.data)(g)


class Scatter(Op):
    """Sends g to where the maximum of each window stood, once, to the first in scan order if there are several."""

    def __init__(self, window: Window, x: Array, best: Array):
        self.window, self.x, self.best = window, x, best

    def winners(self) -> Any:
        """For each offset in the window, the slice of the image, and which windows have their maximum there."""
        places = self.best.shape[-2:]
        open_windows = array_module(self.x).ones(self.best.shape, bool)
        for offset in self.window.offsets(places):
            wins = (self.x[(..., *offset)] == self.best) & open_windows
            open_windows &= ~wins
            yield (..., *offset), wins

    def forward(self, g: Array) -> Array:
        out = array_module(g).zeros_like(self.x)
        for offset, wins in self.winners():
            out[offset] += g * wins
        return out

    def backward(self, h: Tensor) -> Any:
        return Gather(self.window, self.x, self.best)(h)


class Gather(Scatter):
    """Fetches from h what stands where the maximum of each window stood: the transpose of Scatter."""

    def forward(self, h: Array) -> Array:
        out = array_module(h).zeros_like(self.best)
        for offset, wins in self.winners():
            out += h[offset] * wins
        return out

    def backward(self, g: Tensor) -> Any:
        return Scatter(self.window, self.x, self.best)(g)


class WindowSum(Op):
    """The sum over each window of an image without padding."""

    def __init__(self, window: Window):
        self.window = window

    def forward(self, x: Array) -> Array:
        self.image = x.shape
        first, *rest = self.window.offsets(self.window.output(x.shape))
        out = x[(..., *first)].copy()
        for offset in rest:
            out += x[(..., *offset)]
        return out

    def backward(self, g: Tensor) -> Any:
        return Spread(self.window, self.image)(g)


class Spread(Op):
    """Adds g to all elements of its window: the transpose of WindowSum."""

    def __init__(self, window: Window, image: tuple[int, ...]):
        self.window, self.image = window, image

    def forward(self, g: Array) -> Array:
        out = array_module(g).zeros(self.image, g.dtype)
        for offset in self.window.offsets(g.shape[-2:]):
            out[(..., *offset)] += g
        return out

    def backward(self, h: Tensor) -> Any:
        return WindowSum(self.window)(h)


def _padded(x: Operand, kernel: Any, stride: Any, padding: Any, value: float) -> tuple[Tensor, Window]:
    """The image with its border, and the window that slides over it."""
    x, window = as_tensor(x), Window.of(kernel, stride, padding)
    if any(p >= k for p, k in zip(window.padding, window.kernel, strict=True)):
        raise ShapeError(
            f"padding {window.padding} for a pooling window of {window.kernel}",
            "padding must be smaller than the window, so that every window holds an element",
            f"padding={min(window.kernel) // 2}",
        )
    window.output(x.shape)
    if window.padding != (0, 0):
        ph, pw = window.padding
        x = pad(x, [(0, 0), (0, 0), (ph, ph), (pw, pw)], value)
    return x, Window(window.kernel, window.stride, (0, 0))


def max_pool2d(x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Tensor:
    """The largest element of each window; the stride is the kernel size unless given.

    A tie passes its gradient once, to the first in scan order.

    >>> F.max_pool2d(tp.tensor([[[[1.0, 3.0, 2.0, 0.0]]]]), (1, 2)).data
    array([[[[3., 2.]]]], dtype=float32)
    """
    x, window = _padded(x, kernel_size, stride, padding, float("-inf"))
    return MaxPool(window)(x)


def avg_pool2d(
    x: Operand, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> Tensor:
    """The mean of each window; `count_include_pad` says whether the zeros of the border count as elements.

    >>> F.avg_pool2d(tp.tensor([[[[1.0, 3.0, 2.0, 0.0]]]]), (1, 2)).data
    array([[[[2., 1.]]]], dtype=float32)
    """
    x = as_tensor(x)
    padded, window = _padded(x, kernel_size, stride, padding, 0.0)
    total = WindowSum(window)(padded)
    if count_include_pad or padded is x:
        return total * (1.0 / (window.kernel[0] * window.kernel[1]))
    ones, _ = _padded(
        Tensor(array_module(x.data).ones((1, 1, *x.shape[2:]), x.dtype)), kernel_size, stride, padding, 0.0
    )
    return total / WindowSum(window)(ones)
