"""What a training step has to do on a device, from the geometry of its network alone: arithmetic,
and bytes.

Work is counted for each CUDA kernel, and for each op that calls a library, so that it can be
compared with their times. Bytes are those of every array that is read or written, once each: caches
save some, misses cost more."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from tinyprop import nn
from tinyprop.functional.windows import Shape, Window
from tinyprop.kernels import tiles
from tinyprop.nn.module import Module

FLOAT = 4  # bytes
REST = "the rest"  # time outside of ops and fused kernels


@dataclass(frozen=True)
class Work:
    """Additions and multiplications, and bytes that go to or from the memory of the device."""

    flops: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes)


Part = tuple[str, Work]  # a kernel, or an op, and what it does


def gradient(op: str) -> str:
    """What the backward pass of an op is called, where its time and work are told."""
    return f"{op} gradient"


def step_work(net: Iterable[Module], images: Shape, exact: bool = False) -> dict[str, Work]:
    """The work of a training step of a convolutional network on images (N, C, H, W), kernel by
    kernel.

    With `exact`, no convolution is done in tiles: this is the arithmetic that textbooks count.

    >>> work = step_work(nn.build("C(8,1,1,0)-C(2,1,1,0)-P(4,4,0,avg)"), (10, 3, 4, 4))
    >>> work["Convolve"].flops == 2 * 10 * 4 * 4 * (3 * 8 + 8 * 2)
    True
    """
    total: dict[str, Work] = {}
    shape, first, before = images, True, None
    for layer in net:
        # one kernel does both
        fused = isinstance(before, nn.BatchNorm) and isinstance(layer, nn.Activation)
        for name, work in () if fused else layer_work(layer, shape, first, exact):
            total[name] = total.get(name, Work()) + work
        before = layer
        shape = shape_after(layer, shape)
        first = first and not list(layer.parameters())
    return total


def whole(work: dict[str, Work]) -> Work:
    return sum(work.values(), Work())


def touching(*shapes: Shape | int, flops: float = 0.0) -> Work:
    """Arrays of these shapes, or numbers of elements, each read or written once."""
    return Work(flops, FLOAT * sum(prod(s) if isinstance(s, tuple) else s for s in shapes))


def product(rows: int, inner: int, columns: int, times: int = 1) -> Work:
    """Matrices (rows, inner) @ (inner, columns)."""
    elements = rows * inner + inner * columns + rows * columns
    return touching(times * elements, flops=2.0 * times * rows * inner * columns)


def window_of(layer: Any) -> Window:
    size = layer.weight.shape[2:] if hasattr(layer, "weight") else layer.kernel_size
    return Window.of(size, layer.stride, layer.padding)


def shape_after(layer: Module, shape: Shape) -> Shape:
    if isinstance(layer, (nn.Conv2d, nn.NormPropConv2d)):
        return (shape[0], layer.weight.shape[0], *window_of(layer).output(shape))
    if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)):
        return (*shape[:2], *window_of(layer).output(shape))
    return shape


def layer_work(layer: Module, image: Shape, first: bool, exact: bool) -> Iterator[Part]:
    out = shape_after(layer, image)
    if isinstance(layer, nn.NormPropConv2d):
        w = layer.weight.size
        yield "weight_norm", touching(2 * w, flops=3 * w)
        yield "weight_norm_gradient", touching(3 * w, flops=7 * w)
        yield "weight_norm", touching(2 * w, flops=3 * w)  # the constraint
        yield "shifted_relu", touching(out, out, flops=2 * prod(out))
        yield "shifted_relu_gradient", touching(out, out, out, flops=2 * prod(out))
    if isinstance(layer, nn.BatchNorm):
        yield "strip_moments", touching(out, flops=4 * prod(out))
        yield "batch_norm", touching(out, out, flops=4 * prod(out))
        yield "batch_norm_sums", touching(out, out, flops=4 * prod(out))
        yield "batch_norm_gradient", touching(out, out, out, flops=8 * prod(out))
    # its gradient writes a mask, a byte for each element, and reads it
    if isinstance(layer, nn.Activation):
        yield "ReLU", touching(out, out, flops=prod(out))
        yield (
            gradient("ReLU"),
            touching(out, out, out, flops=2 * prod(out)) + Work(bytes=2 * prod(out)),
        )
    if isinstance(layer, (nn.Conv2d, nn.NormPropConv2d)):
        yield from convolution_work(window_of(layer), image, layer.weight.shape, first, exact)
    if isinstance(layer, (nn.MaxPool2d, nn.AvgPool2d)):
        looks = prod(out) * prod(window_of(layer).kernel)
        # where the maximum was, in 8 bytes
        won = (out, out) if isinstance(layer, nn.MaxPool2d) else ()
        yield "pool", touching(image, out, *won, flops=looks)
        yield "unpool", touching(out, image, *won, flops=looks)
    parameters = sum(p.size for p in layer.parameters())
    if parameters:
        yield "update", touching(5 * parameters, flops=6 * parameters)


def convolution_work(
    window: Window, image: Shape, kernel: Shape, first: bool, exact: bool
) -> Iterator[Part]:
    """A convolution and its gradients (with respect to filters only, for the first layer), by the
    fastest algorithm."""
    (n, c, h, width), (o, _, kh, kw) = image, kernel
    rows, across = window.output(image)
    places, inner, copied = n * rows * across, kh * kw * c, Work()
    if window.kernel == (1, 1):  # where the window is on the padding, nothing is multiplied
        met = [
            places.stop - places.start
            for axis in (0, 1)
            for places, _ in window.along(axis, image[2 + axis])
        ]
        places = n * prod(met)
    # the pixels of each window, copied to a row
    elif exact or not tiles.pays(window, image, kernel):
        padded = n * (h + 2 * window.padding[0]) * (width + 2 * window.padding[1]) * c
        copied = touching(image, 2 * padded, places * inner)
    else:
        yield from tiled("Convolve", n, (c, h, width), (o, rows, across), kh)
        if not first:
            yield from tiled(gradient("Convolve"), n, (o, rows, across), (c, h, width), kh)
        yield from tiled(
            gradient("Convolve"), n, (c, h, width), (o, rows, across), kh, of_filters=True
        )
        return
    yield "Convolve", product(places, inner, o) + copied
    if not first:
        yield gradient("Convolve"), product(places, o, inner) + copied
    yield gradient("Convolve"), product(inner, places, o) + copied


def tiled(
    name: str, n: int, source: Shape, result: Shape, k: int, of_filters: bool = False
) -> Iterator[Part]:
    """Images (C, H, W) and results (O, rows, columns) through their values at points: see
    `kernels/tiles.py`."""
    step, points = tiles.TILES[k]
    size = len(points) + 1
    read, weigh, write = (tiles.matrices(k)[matrix] for matrix in ("input", "filter", "output"))
    (c, *_), (o, rows, across) = source, result
    number = n * -(-rows // step) * -(-across // step)

    def mapped(matrix: Any, patches: int, *arrays: int) -> Part:
        """matrix @ patch @ matrix.T of every patch; elements of the matrix that are 0 cost
        nothing."""
        flops = 2.0 * int((matrix != 0).sum()) * sum(matrix.shape) * patches
        return "map_tiles", touching(*arrays, flops=flops)

    pixels, outputs, weights = n * prod(source), n * prod(result), c * o
    if of_filters:  # the input transform is that of Convolve
        yield mapped(write.T, number * o, outputs, size**2 * number * o)
        yield name, product(c, number, o, times=size**2)
        yield mapped(weigh.T, weights, size**2 * weights, k**2 * weights)
    else:
        yield mapped(read, number * c, pixels, size**2 * number * c)
        yield mapped(weigh, weights, k**2 * weights, size**2 * weights)
        yield name, product(number, c, o, times=size**2)
        yield mapped(write, number * o, size**2 * number * o, outputs)
