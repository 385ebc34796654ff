"""JAX, its whole step compiled."""

import math
from importlib import import_module
from typing import Any

from tinyprop import nn
from tinyprop.engine.arrays import HostArray

from .peer import Arrays, Framework, Train, constrained, parameters


class Jax(Framework):
    title = "JAX jit"
    package = "jax"
    slow = True
    remark = (
        "the whole step compiled; its threads are limited by the cores that the process may use"
    )

    def __init__(self, threads: int):
        super().__init__(threads)
        self.jax: Any = import_module("jax")
        self.relu = self.jax.nn.relu

    def trainer(self, net: nn.Sequential, threads: int) -> Train:
        jax = self.jax
        layers = list(net.named_children())
        unit_length = set(constrained(net))
        lr = self.learning["lr"]
        momentum = self.learning["momentum"]
        weight_decay = self.learning["weight_decay"]

        def mean_loss(p: Arrays, x: Any, labels: Any) -> Any:
            scores = jax.nn.log_softmax(self.forward(layers, p, x))
            return -jax.numpy.take_along_axis(scores, labels[:, None], 1).mean()

        def updated(name: str, weight: Any, velocity: Any) -> Any:
            weight = weight - lr * velocity
            if name not in unit_length:
                return weight
            return weight / self.per_unit(self.length(weight), weight)

        def whole_step(p: Arrays, velocities: Arrays, x: Any, labels: Any) -> Any:
            loss, gradients = jax.value_and_grad(mean_loss)(p, x, labels)
            new_p = {}
            new_velocities = {}
            for name, weight in p.items():
                gradient = gradients[name] + weight_decay * weight
                velocity = momentum * velocities[name] + gradient
                new_velocities[name] = velocity
                new_p[name] = updated(name, weight, velocity)
            return loss, (new_p, new_velocities)

        p = {name: jax.numpy.array(values) for name, values in parameters(net).items()}
        state = p, {name: jax.numpy.zeros_like(values) for name, values in p.items()}
        compiled = jax.jit(whole_step, donate_argnums=(0, 1))

        def step(x: HostArray, labels: HostArray) -> float:
            nonlocal state
            loss, state = compiled(*state, x, labels)
            jax.block_until_ready(state)
            return float(loss)

        return step

    def convolve(self, x: Any, weight: Any, bias: Any, stride: Any, padding: Any) -> Any:
        edges = [(padding, padding), (padding, padding)]
        out = self.jax.lax.conv_general_dilated(
            x, weight, (stride, stride), edges, dimension_numbers=("NCHW", "OIHW", "NCHW")
        )
        return out if bias is None else out + bias.reshape(-1, 1, 1)

    def pool(self, x: Any, start: float, combine: Any, size: int, stride: int, padding: int) -> Any:
        edges = ((0, 0), (0, 0), (padding, padding), (padding, padding))
        return self.jax.lax.reduce_window(
            x, start, combine, (1, 1, size, size), (1, 1, stride, stride), edges
        )

    def max_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.pool(x, -math.inf, self.jax.lax.max, size, stride, padding)

    def avg_pool(self, x: Any, size: Any, stride: Any, padding: Any) -> Any:
        return self.pool(x, 0.0, self.jax.lax.add, size, stride, padding) / size**2
