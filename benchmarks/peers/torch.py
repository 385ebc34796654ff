"""PyTorch, in both of its layouts, and with the batch shared among threads as tinyprop does it."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from tinyprop import nn
from tinyprop.engine.arrays import HostArray
from tinyprop.nn.module import Module

from .peer import Framework, Train, constrained, cotangent, parameters


class Torch(Framework):
    title = "PyTorch NCHW"
    package = "torch"
    remark = "eager"
    layout = "contiguous_format"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.torch: Any = import_module("torch")
        self.functions: Any = import_module("torch.nn.functional")
        self.relu = self.functions.relu
        self.convolve = self.functions.conv2d
        self.linear = self.functions.linear
        self.max_pool = self.functions.max_pool2d
        self.avg_pool = self.functions.avg_pool2d

    def use_threads(self, threads: int) -> None:
        super().use_threads(threads)
        self.torch.set_num_threads(threads)

    def array(self, values: HostArray) -> Any:
        """The same memory, unless another layout takes a copy."""
        tensor = self.torch.from_numpy(values)
        if values.ndim != 4:
            return tensor
        return tensor.contiguous(memory_format=getattr(self.torch, self.layout))

    def leaves(self, net: Module) -> dict[str, Any]:
        """The parameters as tensors with gradients."""
        return {name: self.array(p).requires_grad_() for name, p in parameters(net).items()}

    def constrain(self, weights: Iterable[Any]) -> None:
        """Scale each weight vector to unit length."""
        with self.torch.no_grad():
            for weight in weights:
                weight /= self.per_unit(self.length(weight), weight)

    def trainer(self, net: nn.Sequential, threads: int) -> Train:
        p = self.leaves(net)
        layers = list(net.named_children())
        unit_length = [p[name] for name in constrained(net)]
        optimizer = self.torch.optim.SGD(p.values(), **self.learning)

        def step(x: HostArray, labels: HostArray) -> float:
            optimizer.zero_grad()
            scores = self.forward(layers, p, self.array(x))
            loss = self.functions.cross_entropy(scores, self.torch.from_numpy(labels))
            loss.backward()
            optimizer.step()
            self.constrain(unit_length)
            return loss.item()

        return step

    def predictor(self, net: nn.Sequential, threads: int) -> Callable[[HostArray], HostArray]:
        p = {name: self.array(values) for name, values in parameters(net).items()}
        layers = list(net.named_children())

        def predict(x: HostArray) -> HostArray:
            with self.torch.inference_mode():
                return self.forward(layers, p, self.array(x)).numpy()

        return predict

    def layer(
        self, net: nn.Sequential, i: int, x: HostArray, input_gradient: bool
    ) -> Callable[[], list[HostArray]]:
        p = self.leaves(net)
        layers = list(net.named_children())
        name, layer = layers[i]
        with self.torch.no_grad():
            entering = self.forward(layers[:i], p, self.array(x))
            gradient = self.torch.empty_like(self.through(name, layer, p, entering))
            gradient.copy_(self.torch.from_numpy(cotangent(tuple(gradient.shape))))
        wanted = [p[f"{name}.{key}"] for key in parameters(layer)]
        if input_gradient:
            entering.requires_grad_()
            wanted.insert(0, entering)

        def work() -> list[HostArray]:
            output = self.through(name, layer, p, entering)
            gradients = self.torch.autograd.grad(output, wanted, gradient)
            return [tensor.detach().numpy() for tensor in (output, *gradients)]

        return work

    def length(self, weight: Any) -> Any:
        return weight.flatten(1).norm(dim=1)

    def batch_norm(self, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        mean = self.torch.from_numpy(layer.running_mean.data)
        var = self.torch.from_numpy(layer.running_var.data)
        return self.functions.batch_norm(
            x, mean, var, weight, bias, training=True, momentum=layer.momentum, eps=layer.eps
        )


class TorchChannelsLast(Torch):
    title = "PyTorch channels_last"
    layout = "channels_last"


class TorchThreads(TorchChannelsLast):
    title = "PyTorch in parts"
    remark = "channels_last; each Python thread takes a part of the batch, with one PyTorch thread"
    slow = True  # nothing else than its steps differs from channels_last

    def trainer(self, net: nn.Sequential, threads: int) -> Train:
        if any(isinstance(layer, nn.BatchNorm) for layer in net.modules()):
            raise NotImplementedError("statistics over the parts of a batch")
        p = self.leaves(net)
        layers = list(net.named_children())
        unit_length = [p[name] for name in constrained(net)]
        optimizer = self.torch.optim.SGD(p.values(), **self.learning)
        workers = ThreadPoolExecutor(threads, initializer=self.torch.set_num_threads, initargs=(1,))

        def part(x: HostArray, labels: HostArray, total: int) -> tuple[float, tuple[Any, ...]]:
            scores = self.forward(layers, p, self.array(x))
            expected = self.torch.from_numpy(labels)
            loss = self.functions.cross_entropy(scores, expected, reduction="sum") / total
            return loss.item(), self.torch.autograd.grad(loss, list(p.values()))

        def step(x: HostArray, labels: HostArray) -> float:
            size = -(-len(x) // threads)
            jobs = []
            for start in range(0, len(x), size):
                rows = slice(start, start + size)
                jobs.append(workers.submit(part, x[rows], labels[rows], len(x)))
            losses, gradients = zip(*(job.result() for job in jobs), strict=True)
            for weight, parts in zip(p.values(), zip(*gradients, strict=True), strict=True):
                weight.grad = sum(parts)
            optimizer.step()
            self.constrain(unit_length)
            return sum(losses)

        return step
