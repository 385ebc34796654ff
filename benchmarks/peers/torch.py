"""PyTorch at its best: its own functions, its fused optimiser, and both of its layouts. It
translates the very network that tinyprop builds."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from tinyprop import activations, nn
from tinyprop.engine.arrays import HostArray
from tinyprop.nn.module import Module

from .peer import Peer, Train, constrained, cotangent, parameters

Tensors = dict[str, Any]  # the parameters of a network, by their names
Layers = Iterable[tuple[str, Module]]


class Torch(Peer):
    title = "PyTorch NCHW"
    package = "torch"
    layout = "contiguous_format"

    def __init__(self, threads: int):
        super().__init__(threads)
        self.torch: Any = import_module("torch")
        self.functions: Any = import_module("torch.nn.functional")

    @contextmanager
    def limited(self) -> Iterator[None]:
        before = self.torch.get_num_threads()
        self.torch.set_num_threads(self.threads)
        try:
            with super().limited():
                yield
        finally:
            self.torch.set_num_threads(before)

    def array(self, values: HostArray) -> Any:
        """The same memory, unless another layout takes a copy."""
        tensor = self.torch.from_numpy(values)
        if values.ndim != 4:
            return tensor
        return tensor.contiguous(memory_format=getattr(self.torch, self.layout))

    def leaves(self, net: Module) -> Tensors:
        """The parameters as tensors with gradients."""
        return {name: self.array(p).requires_grad_() for name, p in parameters(net).items()}

    def constrain(self, weights: Iterable[Any]) -> None:
        """Scale each weight vector to unit length."""
        with self.torch.no_grad():
            for weight in weights:
                weight /= per_unit(length(weight), weight)

    def trainer(self, net: nn.Sequential) -> Train:
        p = self.leaves(net)
        layers = list(net.named_children())
        unit_length = [p[name] for name in constrained(net)]
        optimizer = self.torch.optim.SGD(p.values(), fused=True, **self.learning)

        def step(x: HostArray, labels: HostArray) -> float:
            optimizer.zero_grad()
            scores = self.forward(layers, p, self.array(x))
            loss = self.functions.cross_entropy(scores, self.torch.from_numpy(labels))
            loss.backward()
            optimizer.step()
            self.constrain(unit_length)
            return loss.item()

        return step

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

    def forward(self, layers: Layers, p: Tensors, x: Any) -> Any:
        for name, layer in layers:
            x = self.through(name, layer, p, x)
        return x

    def through(self, name: str, layer: Module, p: Tensors, x: Any) -> Any:
        """The output of a layer, by the tinyprop layer that says what to do."""
        match layer:
            case nn.NormPropConv2d() | nn.NormPropLinear():
                return self.normprop(name, layer, p, x)
            case nn.Conv2d() | nn.Linear():
                return self.weighted_sum(layer, x, p[f"{name}.weight"], p.get(f"{name}.bias"))
            case nn.BatchNorm():
                return self.batch_norm(layer, x, p[f"{name}.weight"], p[f"{name}.bias"])
            case nn.Activation() if layer.activation is activations["relu"]:
                return self.functions.relu(x)
            case nn.MaxPool2d():
                stride = layer.stride or layer.kernel_size
                return self.functions.max_pool2d(x, layer.kernel_size, stride, layer.padding)
            case nn.AvgPool2d():
                stride = layer.stride or layer.kernel_size
                return self.functions.avg_pool2d(x, layer.kernel_size, stride, layer.padding)
            case nn.Flatten():
                return x.flatten(1)
        raise NotImplementedError(f"{type(layer).__name__} has no translation")

    def normprop(self, name: str, layer: Any, p: Tensors, x: Any) -> Any:
        """(relu(gamma w x / |w| + beta) - c2) / c1, with the division by c1 folded into the
        weights."""
        c1 = layer.standard.std
        c2 = layer.standard.mean
        weight = p[f"{name}.weight"]
        scale = per_unit(p[f"{name}.gamma"] / (length(weight) * c1), weight)
        pre_activation = self.weighted_sum(layer, x, weight * scale, p[f"{name}.beta"] / c1)
        return self.functions.relu(pre_activation) - c2 / c1

    def weighted_sum(self, layer: Module, x: Any, weight: Any, bias: Any) -> Any:
        if isinstance(layer, nn.Conv2d | nn.NormPropConv2d):
            return self.functions.conv2d(x, weight, bias, layer.stride, layer.padding)
        return self.functions.linear(x, weight, bias)

    def batch_norm(self, layer: nn.BatchNorm, x: Any, weight: Any, bias: Any) -> Any:
        mean = self.torch.from_numpy(layer.running_mean.data)
        var = self.torch.from_numpy(layer.running_var.data)
        return self.functions.batch_norm(
            x, mean, var, weight, bias, training=True, momentum=layer.momentum, eps=layer.eps
        )


class TorchChannelsLast(Torch):
    title = "PyTorch channels_last"
    layout = "channels_last"


def per_unit(values: Any, weight: Any) -> Any:
    """(O,) -> (O, 1, 1, 1), or as many axes as the weight has"""
    return values.reshape(-1, *[1] * (weight.ndim - 1))


def length(weight: Any) -> Any:
    """The length of each weight vector or filter: (O, ...) -> (O,)"""
    return weight.flatten(1).norm(dim=1)
