"""What a peer has to do, and what the other frameworks share: each translates the very network that
tinyprop builds."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tinyprop import activations, nn
from tinyprop.engine.arrays import HostArray
from tinyprop.engine.random import new_generator
from tinyprop.nn.module import Module

from ..cases import LEARNING, Case

# that the third loss agrees shows that gradients, updates and the constraint do, too
STEPS_CHECKED = 3

# a step on images and labels; returns the loss before it
Train = Callable[[HostArray, HostArray], float]
Arrays = Mapping[str, Any]  # the parameters of a network by their names, as arrays of a framework
Layers = Iterable[tuple[str, Module]]


class Peer:
    """A framework that can do the work of a case. What it cannot do, it does not implement; the
    report says so."""

    title = ""
    package = ""
    remark = ""  # what a reader of a table has to know
    learning = LEARNING  # of the optimiser
    slow = False  # takes part only in cases for all, to keep the run short

    def __init__(self, threads: int):
        """Import the framework; `threads` is the most that any case asks for."""

    def use_threads(self, threads: int) -> None:
        threadpool_limits(threads, user_api="blas")

    def job(self, case: Case) -> tuple[Callable[[], Any], list[float]]:
        """What is timed, and numbers in which all peers have to agree."""
        self.use_threads(case.threads)
        net = case.build()
        x, labels = case.data()
        if case.work == "step":
            step = partial(self.trainer(net, case.threads), x, labels)
            return step, [step() for _ in range(STEPS_CHECKED)]
        if case.work == "inference":
            work: Callable[[], Any] = partial(self.predictor(net, case.threads), x)
        else:
            work = self.layer(net, case.layer, x, case.input_gradient)
        return work, [float(np.mean(np.square(a, dtype=np.float64))) for a in work()]

    def trainer(self, net: nn.Sequential, threads: int) -> Train:
        """Steps of SGD with momentum and weight decay, and the unit-length constraint."""
        raise NotImplementedError

    def predictor(self, net: nn.Sequential, threads: int) -> Callable[[HostArray], HostArray]:
        """From images to logits."""
        raise NotImplementedError

    def layer(
        self, net: nn.Sequential, i: int, x: HostArray, input_gradient: bool
    ) -> Callable[[], list[HostArray]]:
        """Output and gradients of layer i, on what the layers before it make of the images."""
        raise NotImplementedError


def parameters(net: Module) -> dict[str, HostArray]:
    return {name: tensor.data for name, tensor in net.named_parameters()}


def constrained(net: Module) -> list[str]:
    """The names of the weights that the constraint keeps at unit length."""
    normprop = nn.NormPropConv2d | nn.NormPropLinear
    return [f"{name}.weight" for name, layer in net.named_children() if isinstance(layer, normprop)]


def cotangent(shape: tuple[int, ...]) -> HostArray:
    """A random gradient of an output, the same for every peer."""
    return new_generator(2).standard_normal(shape, "float32")


class Framework(Peer):
    """Forward through a network, written with the few functions in which frameworks differ."""

    relu: Callable[..., Any]
    convolve: Callable[..., Any]  # x, weight, bias, stride, padding
    linear: Callable[..., Any] = staticmethod(lambda x, weight, bias: x @ weight.T + bias)
    max_pool: Callable[..., Any]  # x, size, stride, padding
    avg_pool: Callable[..., Any]

    def forward(self, layers: Layers, p: Arrays, x: Any) -> Any:
        for name, layer in layers:
            x = self.through(name, layer, p, x)
        return x

    def through(self, name: str, layer: Module, p: Arrays, x: Any) -> Any:
        """The output of a layer, by the tinyprop layer that says what to do."""
        match layer:
            case nn.NormPropConv2d() | nn.NormPropLinear():
                return self.normprop(name, layer, p, x)
            case nn.Conv2d() | nn.Linear():
                return self.weighted_sum(layer, x, p[f"{name}.weight"], p.get(f"{name}.bias"))
            case nn.BatchNorm():
                return self.batch_norm(layer, x, p[f"{name}.weight"], p[f"{name}.bias"])
            case nn.Activation() if layer.activation is activations["relu"]:
                return self.relu(x)
            case nn.MaxPool2d() | nn.AvgPool2d():
                pool = self.max_pool if isinstance(layer, nn.MaxPool2d) else self.avg_pool
                return pool(x, layer.kernel_size, layer.stride or layer.kernel_size, layer.padding)
            case nn.Flatten():
                return x.reshape(len(x), -1)
        raise NotImplementedError(f"{type(layer).__name__} has no translation")

    def normprop(self, name: str, layer: Any, p: Arrays, x: Any) -> Any:
        """(relu(gamma w x / |w| + beta) - c2) / c1, with the division by c1 folded into the
        weights."""
        c1 = np.float32(layer.standard.std)  # MyGrad makes floats float64
        c2 = np.float32(layer.standard.mean)
        weight = p[f"{name}.weight"]
        gamma = p[f"{name}.gamma"]
        beta = p[f"{name}.beta"]
        scale = self.per_unit(gamma / (self.length(weight) * c1), weight)
        pre_activation = self.weighted_sum(layer, x, weight * scale, beta / c1)
        return self.relu(pre_activation) - c2 / c1

    def weighted_sum(self, layer: Module, x: Any, weight: Any, bias: Any) -> Any:
        if isinstance(layer, nn.Conv2d | nn.NormPropConv2d):
            return self.convolve(x, weight, bias, layer.stride, layer.padding)
        return self.linear(x, weight, bias)

    def per_unit(self, values: Any, weight: Any) -> Any:
        """(O,) -> (O, 1, 1, 1), or as many axes as the weight has"""
        return values.reshape(-1, *[1] * (weight.ndim - 1))

    def length(self, weight: Any) -> Any:
        """The length of each weight vector or filter: (O, ...) -> (O,)"""
        return (weight * weight).sum(axis=tuple(range(1, weight.ndim))) ** np.float32(0.5)

    def batch_norm(self, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        """Normalised by the batch. Running estimates, which cost next to nothing, are left out."""
        mean = x.mean(axis=(0, 2, 3))
        var = x.var(axis=(0, 2, 3))
        scale = weight / (var + layer.eps) ** 0.5
        shift = bias - mean * scale
        return x * scale.reshape(-1, 1, 1) + shift.reshape(-1, 1, 1)


class OnNumpy(Framework):
    """A framework on NumPy without an optimiser of its own: gradients by the framework, the update
    by hand."""

    def gradients(
        self, layers: Layers, p: Arrays, x: HostArray, labels: HostArray
    ) -> tuple[float, Arrays]:
        """The mean cross-entropy, and its gradients with respect to the parameters."""
        raise NotImplementedError

    def trainer(self, net: nn.Sequential, threads: int) -> Train:
        p = parameters(net)
        layers = list(net.named_children())
        unit_length = constrained(net)
        velocities = {name: np.zeros_like(values) for name, values in p.items()}

        def step(x: HostArray, labels: HostArray) -> float:
            loss, gradients = self.gradients(layers, p, x, labels)
            for name, weight in p.items():
                velocities[name] *= self.learning["momentum"]
                velocities[name] += gradients[name] + self.learning["weight_decay"] * weight
                weight -= self.learning["lr"] * velocities[name]
            for name in unit_length:
                p[name] /= self.per_unit(self.length(p[name]), p[name])
            return loss

        return step
