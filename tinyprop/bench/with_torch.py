"""PyTorch, in both of its layouts."""

from importlib import import_module
from typing import Any

import numpy as np

from .. import nn
from ..engine.arrays import HostArray
from .cases import Case
from .engines import LEARNING, STEPS_CHECKED, Job, like, mean_squares
from .translation import Framework, constrained, parameters


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
