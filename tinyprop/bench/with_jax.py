"""JAX, its whole step compiled."""

import math
from importlib import import_module
from typing import Any

from .. import nn
from ..engine.arrays import HostArray
from .cases import Case
from .engines import LEARNING, STEPS_CHECKED, Job
from .translation import Arrays, Framework, constrained, moved, parameters


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
