"""PyTorch, in both of its layouts, and with the batch shared among threads as tinyprop does it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from tinyprop import nn
from tinyprop.engine.arrays import HostArray

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
        self.relu, self.convolve, self.linear = (
            self.functions.relu,
            self.functions.conv2d,
            self.functions.linear,
        )
        self.max_pool, self.avg_pool = self.functions.max_pool2d, self.functions.avg_pool2d

    def use_threads(self, threads: int) -> None:
        super().use_threads(threads)
        self.torch.set_num_threads(threads)

    def array(self, values: HostArray) -> Any:
        """The same memory, unless another layout takes a copy."""
        tensor = self.torch.from_numpy(values)
        return (
            tensor.contiguous(memory_format=getattr(self.torch, self.layout))
            if values.ndim == 4
            else tensor
        )

    def trainer(self, net: nn.Sequential, threads: int) -> Train:
        p = {name: self.array(values).requires_grad_() for name, values in parameters(net).items()}
        layers, unit_length = list(net.named_children()), [p[name] for name in constrained(net)]
        optimizer = self.torch.optim.SGD(p.values(), **self.learning)

        def step(x: HostArray, labels: HostArray) -> float:
            optimizer.zero_grad()
            scores = self.forward(layers, p, self.array(x))
            loss = self.functions.cross_entropy(scores, self.torch.from_numpy(labels))
            loss.backward()
            optimizer.step()
            with self.torch.no_grad():
                for weight in unit_length:
                    weight /= self.per_unit(self.length(weight), weight)
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
        p = {name: self.array(values).requires_grad_() for name, values in parameters(net).items()}
        before, only = list(net.named_children())[:i], list(net.named_children())[i : i + 1]
        with self.torch.no_grad():
            entering = self.forward(before, p, self.array(x))
            gradient = self.torch.empty_like(self.forward(only, p, entering))
            gradient.copy_(self.torch.from_numpy(cotangent(tuple(gradient.shape))))
        entering.requires_grad_(input_gradient)
        wanted = [entering] * input_gradient + [
            p[f"{only[0][0]}.{name}"] for name in parameters(only[0][1])
        ]

        def work() -> list[HostArray]:
            output = self.forward(only, p, entering)
            return [
                t.detach().numpy()
                for t in (output, *self.torch.autograd.grad(output, wanted, gradient))
            ]

        return work

    def length(self, weight: Any) -> Any:
        return weight.flatten(1).norm(dim=1)

    def batch_norm(self, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        running = (self.torch.from_numpy(t.data) for t in (layer.running_mean, layer.running_var))
        return self.functions.batch_norm(x, *running, weight, bias, True, layer.momentum, layer.eps)


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
        p = {name: self.array(values).requires_grad_() for name, values in parameters(net).items()}
        layers, unit_length = list(net.named_children()), [p[name] for name in constrained(net)]
        optimizer = self.torch.optim.SGD(p.values(), **self.learning)
        workers = ThreadPoolExecutor(threads, initializer=self.torch.set_num_threads, initargs=(1,))

        def part(x: HostArray, labels: HostArray, total: int) -> tuple[float, tuple[Any, ...]]:
            scores = self.forward(layers, p, self.array(x))
            loss = (
                self.functions.cross_entropy(scores, self.torch.from_numpy(labels), reduction="sum")
                / total
            )
            return loss.item(), self.torch.autograd.grad(loss, list(p.values()))

        def step(x: HostArray, labels: HostArray) -> float:
            size = -(-len(x) // threads)
            starts = range(0, len(x), size)
            jobs = [
                workers.submit(part, x[i : i + size], labels[i : i + size], len(x)) for i in starts
            ]
            losses, gradients = zip(*(job.result() for job in jobs), strict=True)
            for weight, parts in zip(p.values(), zip(*gradients, strict=True), strict=True):
                weight.grad = sum(parts)
            optimizer.step()
            with self.torch.no_grad():
                for weight in unit_length:
                    weight /= self.per_unit(self.length(weight), weight)
            return sum(losses)

        return step
