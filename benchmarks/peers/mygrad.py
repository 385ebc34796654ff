"""MyGrad, with its own convolution, max pool and batch norm; it pads no pools and has no average
pool."""

import math
from importlib import import_module
from typing import Any

import numpy as np

from tinyprop import nn
from tinyprop.engine.arrays import HostArray

from .peer import Arrays, Layers, OnNumpy


class MyGrad(OnNumpy):
    title = "MyGrad"
    package = "mygrad"
    slow = True
    remark = "pools are padded by hand, and the average pool is a sum of slices"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.mygrad: Any = import_module("mygrad")
        self.nnet: Any = import_module("mygrad.nnet")
        self.relu = self.nnet.relu

    def gradients(
        self, layers: Layers, p: Arrays, x: HostArray, labels: HostArray
    ) -> tuple[float, Arrays]:
        tensors = {name: self.mygrad.tensor(values) for name, values in p.items()}
        scores = self.forward(layers, tensors, self.mygrad.tensor(x, constant=True))
        loss = self.nnet.softmax_crossentropy(scores, labels)
        loss.backward()
        return loss.item(), {name: tensor.grad for name, tensor in tensors.items()}

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        out = self.nnet.conv_nd(x, weight, stride=stride, padding=padding)
        return out if bias is None else out + bias.reshape(-1, 1, 1)

    def padded(self, x: Any, size: int, stride: int, padding: int, fill: float) -> Any:
        """x (N, C, H, W) with a border, cut to what the windows cover: MyGrad's pool takes no other
        sizes."""
        n, c, h, w = x.shape
        image = self.mygrad.full((n, c, h + 2 * padding, w + 2 * padding), fill, dtype=x.dtype)
        image[:, :, padding : padding + h, padding : padding + w] = x
        rows = (h + 2 * padding - size) // stride * stride + size
        columns = (w + 2 * padding - size) // stride * stride + size
        return image[:, :, :rows, :columns]

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.nnet.max_pool(
            self.padded(x, size, stride, padding, -math.inf), (size, size), stride
        )

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        image = self.padded(x, size, stride, padding, 0.0)
        height, width = (side - size + 1 for side in image.shape[2:])
        total = 0
        for i in range(size):
            for j in range(size):
                total = total + image[:, :, i : i + height : stride, j : j + width : stride]
        return total / np.float32(size**2)

    def batch_norm(self, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        return self.nnet.batchnorm(x, gamma=weight, beta=bias, eps=layer.eps)
