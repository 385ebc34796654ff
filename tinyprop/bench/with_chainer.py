"""Chainer."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from .. import nn
from ..engine.arrays import HostArray
from .cases import Case
from .engines import LEARNING, STEPS_CHECKED, Job
from .translation import Framework, constrained, numpy_length, parameters


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
