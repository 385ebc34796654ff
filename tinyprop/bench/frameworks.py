"""Other frameworks as engines, imported when they are used. Each translates the very network that tinyprop builds."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from .. import nn
from ..backend import HostArray
from ..nn.module import Module
from .cases import Case
from .engines import LEARNING, STEPS_CHECKED, Engine, Job, like, mean_squares

Arrays = Mapping[str, Any]  # the parameters of a network by their names, as arrays of a framework
Layers = Iterable[tuple[str, Module]]


def parameters(net: Module) -> dict[str, HostArray]:
    return {name: tensor.data for name, tensor in net.named_parameters()}


def constrained(net: Module) -> Iterator[str]:
    """The names of the weights that the constraint keeps at unit length."""
    for name, layer in net.named_children():
        if isinstance(layer, nn.NormPropConv2d | nn.NormPropLinear):
            yield f"{name}.weight"


class Framework(Engine):
    """Forward through a network, written with the few functions in which frameworks differ."""

    def forward(self, layers: Layers, p: Arrays, x: Any) -> Any:
        for name, layer in layers:
            x = self.through(name, layer, p, x)
        return x

    def through(self, name: str, layer: Module, p: Arrays, x: Any) -> Any:
        """The output of a layer, by the tinyprop layer that says what to do."""
        match layer:
            case nn.NormPropConv2d() | nn.NormPropLinear():
                c1, c2 = layer.standard
                weight, gamma, beta = (p[f"{name}.{key}"] for key in ("weight", "gamma", "beta"))
                scale = self.per_unit(gamma / (self.length(weight) * c1), weight)
                return self.relu(self.weighted_sum(layer, x, weight * scale, beta / c1)) - c2 / c1
            case nn.Conv2d() | nn.Linear():
                return self.weighted_sum(layer, x, p[f"{name}.weight"], p.get(f"{name}.bias"))
            case nn.BatchNorm():
                return self.batch_norm(name, layer, x, p[f"{name}.weight"], p[f"{name}.bias"])
            case nn.Activation(function="relu"):
                return self.relu(x)
            case nn.MaxPool2d() | nn.AvgPool2d():
                pool = self.max_pool if isinstance(layer, nn.MaxPool2d) else self.avg_pool
                return pool(x, layer.kernel_size, layer.stride or layer.kernel_size, layer.padding)
            case nn.Flatten():
                return x.reshape(len(x), -1)
        raise NotImplementedError(f"{type(layer).__name__} has no translation")

    def weighted_sum(self, layer: Module, x: Any, weight: Any, bias: Any) -> Any:
        if isinstance(layer, nn.Conv2d | nn.NormPropConv2d):
            return self.convolve(x, weight, bias, layer.stride, layer.padding)
        return self.linear(x, weight, bias)

    def per_unit(self, values: Any, weight: Any) -> Any:
        """(O,) -> (O, 1, 1, 1), or as many axes as the weight has"""
        return values.reshape(-1, *[1] * (weight.ndim - 1))

    def length(self, weight: Any) -> Any:
        """The length of each weight vector or filter: (O, ...) -> (O,)"""
        raise NotImplementedError

    def relu(self, x: Any) -> Any:
        raise NotImplementedError

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        raise NotImplementedError

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight.T + bias

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        raise NotImplementedError

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        raise NotImplementedError

    def batch_norm(self, name: str, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        """Normalised by the batch, with the layer's running estimates brought up to date."""
        raise NotImplementedError


class Torch(Framework):
    title = "PyTorch NCHW"
    package = "torch"
    remark = "eager"
    layout = "contiguous_format"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.torch: Any = import_module("torch")
        self.functions: Any = import_module("torch.nn.functional")

    def use_threads(self, threads: int) -> None:
        super().use_threads(threads)
        self.torch.set_num_threads(threads)

    def array(self, values: HostArray) -> Any:
        tensor = self.torch.from_numpy(values)
        return tensor.contiguous(memory_format=getattr(self.torch, self.layout)) if values.ndim == 4 else tensor

    def step(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        p = {name: self.array(values).requires_grad_() for name, values in parameters(net).items()}
        unit_length = [p[name] for name in constrained(net)]
        optimizer = self.torch.optim.SGD(p.values(), **LEARNING)
        images, truth = self.array(x), self.torch.from_numpy(labels)

        def work() -> float:
            optimizer.zero_grad()
            loss = self.functions.cross_entropy(self.forward(net.named_children(), p, images), truth)
            loss.backward()
            optimizer.step()
            with self.torch.no_grad():
                for weight in unit_length:
                    weight /= self.per_unit(self.length(weight), weight)
            return loss.item()

        return work, [work() for _ in range(STEPS_CHECKED)]

    def inference(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        p = {name: self.array(values) for name, values in parameters(net).items()}
        images = self.array(x)

        def work() -> Any:
            with self.torch.inference_mode():
                return self.forward(net.named_children(), p, images)

        return work, mean_squares(list(work().numpy()[:5]))

    def layer(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        p = {name: self.array(values).requires_grad_() for name, values in parameters(net).items()}
        layers = list(net.named_children())
        before, only = layers[: case.layer], layers[case.layer : case.layer + 1]
        with self.torch.no_grad():
            entering = self.forward(before, p, self.array(x))
            gradient = self.torch.empty_like(self.forward(only, p, entering))
            gradient.copy_(self.torch.from_numpy(like(np.empty(gradient.shape, np.float32))))
        entering.requires_grad_(case.input_gradient)
        wanted = [entering] * case.input_gradient + [p[f"{only[0][0]}.{name}"] for name in parameters(only[0][1])]

        def work() -> list[Any]:
            output = self.forward(only, p, entering)
            return [output.detach(), *self.torch.autograd.grad(output, wanted, gradient)]

        return work, mean_squares([tensor.numpy() for tensor in work()])

    def length(self, weight: Any) -> Any:
        return weight.flatten(1).norm(dim=1)

    def relu(self, x: Any) -> Any:
        return self.functions.relu(x)

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        return self.functions.conv2d(x, weight, bias, stride, padding)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return self.functions.linear(x, weight, bias)

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.functions.max_pool2d(x, size, stride, padding)

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.functions.avg_pool2d(x, size, stride, padding)

    def batch_norm(self, name: str, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        running = (self.torch.from_numpy(t.data) for t in (layer.running_mean, layer.running_var))
        return self.functions.batch_norm(x, *running, weight, bias, True, layer.momentum, layer.eps)


class TorchChannelsLast(Torch):
    title = "PyTorch channels_last"
    layout = "channels_last"


class Chainer(Framework):
    title = "Chainer"
    package = "chainer"
    remark = "without iDeep; given back the names that NumPy 2 has dropped"

    def __init__(self, threads: int):
        super().__init__(threads)
        revive_chainer()
        self.chainer: Any = import_module("chainer")
        self.functions: Any = import_module("chainer.functions")

    def step(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        p = {name: self.chainer.Parameter(values) for name, values in parameters(net).items()}
        unit_length = [p[name] for name in constrained(net)]
        link = self.chainer.Link()
        with link.init_scope():
            for name, parameter in p.items():
                setattr(link, name, parameter)
        optimizer = self.chainer.optimizers.MomentumSGD(LEARNING["lr"], LEARNING["momentum"]).setup(link)
        optimizer.add_hook(self.chainer.optimizer_hooks.WeightDecay(LEARNING["weight_decay"]))

        def work() -> float:
            link.cleargrads()
            loss = self.functions.softmax_cross_entropy(self.forward(net.named_children(), p, x), labels)
            loss.backward()
            optimizer.update()
            for weight in unit_length:
                weight.array /= numpy_length(weight.array)
            return float(loss.array)

        return work, [work() for _ in range(STEPS_CHECKED)]

    def length(self, weight: Any) -> Any:
        return self.functions.sqrt(self.functions.sum(weight * weight, axis=tuple(range(1, weight.ndim))))

    def relu(self, x: Any) -> Any:
        return self.functions.relu(x)

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        return self.functions.convolution_2d(x, weight, bias, stride, padding)

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.functions.max_pooling_2d(x, size, stride, padding, cover_all=False)

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.functions.average_pooling_2d(x, size, stride, padding)

    def batch_norm(self, name: str, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        running = {"running_mean": layer.running_mean.data, "running_var": layer.running_var.data}
        return self.functions.batch_normalization(x, weight, bias, eps=layer.eps, decay=1 - layer.momentum, **running)


def revive_chainer() -> None:
    """Let Chainer 7.8.1 (2022) be imported with NumPy 2 and without pkg_resources, which it uses for checks only."""
    names = {"sctypes": {"int": [np.int8, np.int16, np.int32, np.int64]}, "bool": bool, "int": int, "float": float}
    for name, value in names.items():
        if name not in vars(np):
            setattr(np, name, value)
    checks: Any = ModuleType("chainer._environment_check")
    checks.check = lambda: None
    sys.modules[checks.__name__] = checks


def numpy_length(weight: HostArray) -> HostArray:
    return np.sqrt((weight * weight).sum(axis=tuple(range(1, weight.ndim)), keepdims=True))


class Jax(Framework):
    title = "JAX jit"
    package = "jax"
    remark = "the whole step compiled; its threads are limited by the cores the process may use"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.jax: Any = import_module("jax")
        self.running: dict[str, tuple[Any, Any]] = {}  # the estimates of BatchNorm layers, while a step is traced

    def step(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        jax, layers, unit_length = self.jax, list(net.named_children()), set(constrained(net))

        def mean_loss(p: Arrays, running: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
            self.running = dict(running)
            scores = jax.nn.log_softmax(self.forward(layers, p, images))
            return -jax.numpy.take_along_axis(scores, truth[:, None], 1).mean(), self.running

        def updated(name: str, weight: Any, velocity: Any) -> Any:
            weight = weight - LEARNING["lr"] * velocity
            return weight / self.per_unit(self.length(weight), weight) if name in unit_length else weight

        def whole_step(p: Arrays, velocities: Arrays, running: Any) -> Any:
            (loss, running), g = jax.value_and_grad(mean_loss, has_aux=True)(p, running)
            velocities = {
                name: LEARNING["momentum"] * v + g[name] + LEARNING["weight_decay"] * p[name]
                for name, v in velocities.items()
            }
            return loss, ({name: updated(name, p[name], v) for name, v in velocities.items()}, velocities, running)

        images, truth = jax.numpy.asarray(x), jax.numpy.asarray(labels)
        p = {name: jax.numpy.asarray(values) for name, values in parameters(net).items()}
        running = {
            name: (jax.numpy.asarray(layer.running_mean.data), jax.numpy.asarray(layer.running_var.data))
            for name, layer in layers
            if isinstance(layer, nn.BatchNorm)
        }
        state = p, {name: jax.numpy.zeros_like(values) for name, values in p.items()}, running
        compiled = jax.jit(whole_step, donate_argnums=(0, 1, 2))

        def work() -> float:
            nonlocal state
            loss, state = compiled(*state)
            jax.block_until_ready(state)
            return float(loss)

        return work, [work() for _ in range(STEPS_CHECKED)]

    def length(self, weight: Any) -> Any:
        return self.jax.numpy.sqrt((weight * weight).sum(axis=tuple(range(1, weight.ndim))))

    def relu(self, x: Any) -> Any:
        return self.jax.nn.relu(x)

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        along, names = [(padding, padding)] * 2, ("NCHW", "OIHW", "NCHW")
        out = self.jax.lax.conv_general_dilated(x, weight, (stride, stride), along, dimension_numbers=names)
        return out if bias is None else out + bias.reshape(-1, 1, 1)

    def pool(self, x: Any, start: float, combine: Any, size: int, stride: int, padding: int) -> Any:
        edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        return self.jax.lax.reduce_window(x, start, combine, (1, 1, size, size), (1, 1, stride, stride), edges)

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.pool(x, -math.inf, self.jax.lax.max, size, stride, padding)

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.pool(x, 0.0, self.jax.lax.add, size, stride, padding) / size**2

    def batch_norm(self, name: str, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        mean, var = x.mean((0, 2, 3)), x.var((0, 2, 3))
        self.running[name] = moved(layer, self.running[name], (mean, var), x.size // x.shape[1])
        scale = weight / self.jax.numpy.sqrt(var + layer.eps)
        return x * scale.reshape(-1, 1, 1) + (bias - mean * scale).reshape(-1, 1, 1)


def moved(layer: nn.BatchNorm, running: tuple[Any, Any], now: tuple[Any, Any], count: int) -> tuple[Any, Any]:
    """Running estimates of mean and variance, a step closer to those of a batch of so many values."""
    targets = now[0], now[1] * (count / (count - 1))
    mean, var = (old + layer.momentum * (new - old) for old, new in zip(running, targets, strict=True))
    return mean, var


class Autograd(Framework):
    title = "HIPS autograd"
    package = "autograd"
    remark = "it has no fast convolution: a textbook im2col here"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.np: Any = import_module("autograd.numpy")
        self.autograd: Any = import_module("autograd")
        extend: Any = import_module("autograd.extend")
        self.windows = extend.primitive(windows)
        self.running: dict[str, tuple[Any, Any]] = {}

        def back(out: Any, x: HostArray, size: int, stride: int, padding: int, fill: float) -> Any:
            return lambda g: windows_transposed(g, x.shape, size, stride, padding)

        extend.defvjp(self.windows, back)

    def step(self, case: Case, net: nn.Sequential, x: HostArray, labels: HostArray) -> Job:
        p, layers, unit_length = parameters(net), list(net.named_children()), list(constrained(net))
        velocities = {name: np.zeros_like(values) for name, values in p.items()}
        chosen = np.eye(10, dtype=np.float32)[labels]

        def mean_loss(p: Arrays) -> Any:
            scores = self.forward(layers, p, x)
            highest = self.np.max(scores, axis=1, keepdims=True)
            sums = self.np.log(self.np.sum(self.np.exp(scores - highest), axis=1))
            return self.np.mean(sums + highest[:, 0] - self.np.sum(scores * chosen, axis=1))

        with_gradients = self.autograd.value_and_grad(mean_loss)

        def work() -> float:
            loss, gradients = with_gradients(p)
            for name, weight in p.items():
                velocities[name] *= LEARNING["momentum"]
                velocities[name] += gradients[name] + LEARNING["weight_decay"] * weight
                weight -= LEARNING["lr"] * velocities[name]
            for name in unit_length:
                p[name] /= numpy_length(p[name])
            return float(loss)

        return work, [work() for _ in range(STEPS_CHECKED)]

    def length(self, weight: Any) -> Any:
        return self.np.sqrt(self.np.sum(weight * weight, axis=tuple(range(1, weight.ndim))))

    def relu(self, x: Any) -> Any:
        return self.np.where(x > 0, x, np.float32(0))  # its maximum would pass on half of the gradient at 0

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        views = self.windows(x, weight.shape[2], stride, padding, 0.0)  # (N, C, rows, columns, kh, kw)
        out = self.np.tensordot(views, weight, ((1, 4, 5), (1, 2, 3)))  # -> (N, rows, columns, O)
        out = self.np.transpose(out, (0, 3, 1, 2))
        return out if bias is None else out + bias.reshape(-1, 1, 1)

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.np.max(self.windows(x, size, stride, padding, -math.inf), axis=(4, 5))

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.np.mean(self.windows(x, size, stride, padding, 0.0), axis=(4, 5))

    def batch_norm(self, name: str, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        mean, var = self.np.mean(x, axis=(0, 2, 3)), self.np.var(x, axis=(0, 2, 3))
        old, now = (layer.running_mean.data, layer.running_var.data), (mean._value, var._value)
        for estimate, new in zip(old, moved(layer, old, now, x.size // x.shape[1]), strict=True):
            estimate[...] = new
        scale = weight / self.np.sqrt(var + layer.eps)
        return x * scale.reshape(-1, 1, 1) + (bias - mean * scale).reshape(-1, 1, 1)


def windows(x: HostArray, size: int, stride: int, padding: int, fill: float) -> HostArray:
    """x (N, C, H, W) -> (N, C, rows, columns, size, size), without a copy but for the padding."""
    edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    padded = np.pad(x, edges, constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), (2, 3))[:, :, ::stride, ::stride]


def windows_transposed(g: HostArray, shape: tuple[int, ...], size: int, stride: int, padding: int) -> HostArray:
    """The gradient of `windows`: every element is sent back to the pixel it was a copy of."""
    n, c, h, w = shape
    rows, columns = g.shape[2:4]
    padded = np.zeros((n, c, h + 2 * padding, w + 2 * padding), g.dtype)
    for i in range(size):
        for j in range(size):
            padded[:, :, i : i + rows * stride : stride, j : j + columns * stride : stride] += g[..., i, j]
    return padded[:, :, padding : padding + h, padding : padding + w]
