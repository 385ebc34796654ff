"""HIPS autograd, with a convolution made of windows and a matrix product."""

import math
from importlib import import_module
from typing import Any

import numpy as np

from tinyprop.engine.arrays import HostArray

from .peer import Arrays, Layers, OnNumpy


class Autograd(OnNumpy):
    title = "HIPS autograd"
    package = "autograd"
    slow = True
    remark = "its own convolution is slow: a textbook im2col here"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.np: Any = import_module("autograd.numpy")
        self.autograd: Any = import_module("autograd")
        extend: Any = import_module("autograd.extend")
        self.windows = extend.primitive(windows)

        def back(out: Any, x: HostArray, size: int, stride: int, padding: int, fill: float) -> Any:
            return lambda g: windows_transposed(g, x.shape, size, stride, padding)

        extend.defvjp(self.windows, back)

    def gradients(
        self, layers: Layers, p: Arrays, x: HostArray, labels: HostArray
    ) -> tuple[float, Arrays]:
        chosen = np.eye(10, dtype=np.float32)[labels]

        def mean_loss(p: Arrays) -> Any:
            scores = self.forward(layers, p, x)
            highest = self.np.max(scores, axis=1, keepdims=True)
            sums = self.np.log(self.np.sum(self.np.exp(scores - highest), axis=1))
            return self.np.mean(sums + highest[:, 0] - self.np.sum(scores * chosen, axis=1))

        loss, gradients = self.autograd.value_and_grad(mean_loss)(p)
        return float(loss), gradients

    def relu(self, x: Any) -> Any:
        # its maximum would pass on half of the gradient at 0
        return self.np.where(x > 0, x, np.float32(0))

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        # (N, C, rows, columns, kh, kw)
        views = self.windows(x, weight.shape[2], stride, padding, 0.0)
        out = self.np.tensordot(views, weight, ((1, 4, 5), (1, 2, 3)))  # -> (N, rows, columns, O)
        out = self.np.transpose(out, (0, 3, 1, 2))
        return out if bias is None else out + bias.reshape(-1, 1, 1)

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.np.max(self.windows(x, size, stride, padding, -math.inf), axis=(4, 5))

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.np.mean(self.windows(x, size, stride, padding, 0.0), axis=(4, 5))


def windows(x: HostArray, size: int, stride: int, padding: int, fill: float) -> HostArray:
    """x (N, C, H, W) -> (N, C, rows, columns, size, size), without a copy but for the padding."""
    edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x, edges, constant_values=fill)
    every = np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))
    return every[:, :, ::stride, ::stride]


def windows_transposed(
    g: HostArray, shape: tuple[int, ...], size: int, stride: int, padding: int
) -> HostArray:
    """The gradient of `windows`: every element is added to the pixel that it is a copy of."""
    n, c, h, w = shape
    rows, columns = g.shape[2:4]
    padded = np.zeros((n, c, h + 2 * padding, w + 2 * padding), g.dtype)
    for i in range(size):
        for j in range(size):
            down = slice(i, i + rows * stride, stride)
            across = slice(j, j + columns * stride, stride)
            padded[:, :, down, across] += g[..., i, j]
    return padded[:, :, padding : padding + h, padding : padding + w]
