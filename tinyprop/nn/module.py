"""Module: something with parameters that maps a tensor to a tensor."""

from collections.abc import Iterator, Mapping
from typing import Any, Self

from ..engine.arrays import Array, is_array, to_backend
from ..engine.errors import StateError
from ..engine.guard import check_editable
from ..engine.tensor import Tensor


class Module:
    """A layer or a network: a `forward`, and tensors and modules as attributes.

    Attributes that require a gradient are parameters; other tensors are buffers, saved but not trained.

    >>> layer = tp.nn.Linear(3, 2)
    >>> [name for name, _ in layer.named_parameters()]
    ['weight', 'bias']
    """

    training = True
    whole_batch = False  # whether a training batch must stay in one piece: its samples depend on each other

    def forward(self, x: Tensor) -> Tensor:
        """The output for an input: what a layer or network is; called by module(x).

        >>> class Double(tp.nn.Module):
        ...     def forward(self, x):
        ...         return 2 * x
        >>> Double()(tp.tensor([1.0, 2.0]))
        tensor([2., 4.])
        """
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, x: Tensor) -> Tensor:
        return self.forward(x)

    def __setattr__(self, attribute: str, value: Any) -> None:
        if isinstance(value, Tensor):
            value.name = attribute
        elif isinstance(value, Module):
            for name, tensor in value._named_tensors():
                tensor.name = f"{attribute}.{name}"
        super().__setattr__(attribute, value)

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers by their full names, own ones first."""
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                yield name, value
        for name, child in self.named_children():
            for inner, value in child._named_tensors():
                yield f"{name}.{inner}", value

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """The modules that are attributes of this one, by name.

        >>> [name for name, _ in tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Linear(3, 2)).named_children()]
        ['0', '1']
        """
        for name, value in vars(self).items():
            if isinstance(value, Module):
                yield name, value

    def modules(self) -> Iterator["Module"]:
        """This module and all modules inside it.

        >>> [type(m).__name__ for m in tp.nn.Sequential(tp.nn.Flatten(), tp.nn.Linear(3, 2)).modules()]
        ['Sequential', 'Flatten', 'Linear']
        """
        yield self
        for _, child in self.named_children():
            yield from child.modules()

    def __iter__(self) -> Iterator["Module"]:
        """The layers, in order."""
        return (child for _, child in self.named_children())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are trained, by name.

        >>> [(name, p.shape) for name, p in tp.nn.Linear(3, 2).named_parameters()]
        [('weight', (2, 3)), ('bias', (2,))]
        """
        return ((name, tensor) for name, tensor in self._named_tensors() if tensor.requires_grad)

    def parameters(self) -> Iterator[Tensor]:
        """The tensors that are trained.

        >>> sum(p.size for p in tp.nn.Linear(3, 2).parameters())
        8
        """
        return (tensor for _, tensor in self.named_parameters())

    def state_dict(self) -> dict[str, Array]:
        """A copy of every parameter and buffer, by name.

        >>> sorted(tp.nn.BatchNorm(4).state_dict())
        ['bias', 'running_mean', 'running_var', 'weight']
        """
        return {name: tensor.data.copy() for name, tensor in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Set every parameter and buffer from a state of the same names and shapes; all of them or none.

        >>> one, other = tp.nn.Linear(3, 2), tp.nn.Linear(3, 2)
        >>> other.load_state_dict(one.state_dict())
        >>> bool((one.weight.data == other.weight.data).all())
        True
        """
        own = dict(self._named_tensors())
        missing, unknown = own.keys() - state.keys(), state.keys() - own.keys()
        if missing or unknown:
            wrong = [f"no {name!r}" for name in sorted(missing)] + [f"unknown {name!r}" for name in sorted(unknown)]
            raise StateError(
                f"a state with {', '.join(wrong[:6])}{' ...' if len(wrong) > 6 else ''}",
                "a state has exactly the names of the network's parameters and buffers",
                "build the network as it was when the state was saved",
            )
        for name, tensor in own.items():
            value = state[name]
            if not is_array(value) or value.shape != tensor.shape or value.dtype.kind != tensor.dtype.kind:
                got = f"{value.dtype} {value.shape}" if is_array(value) else type(value).__name__
                raise StateError(
                    f"{name!r} as {got}",
                    f"here it is {tensor.dtype} {tensor.shape}",
                    "build the network as it was when the state was saved",
                )
            check_editable(tensor, name)
        for name, tensor in own.items():
            tensor.data[...] = to_backend(state[name], tensor.backend).astype(tensor.dtype)

    def train(self, mode: bool = True) -> Self:
        """Switch to training behaviour: batch statistics, dropout.

        >>> tp.nn.Dropout().eval().train().training
        True
        """
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch to the behaviour for validation and testing.

        >>> tp.nn.Dropout().eval().training
        False
        """
        return self.train(False)

    def to(self, backend: str | None = None, dtype: Any = None) -> Self:
        """Move all parameters and buffers to a backend, or turn the floating-point ones into another dtype.

        >>> tp.nn.Linear(3, 2).to(dtype="float64").weight.dtype
        dtype('float64')
        """
        for _, tensor in self._named_tensors():
            array = tensor.data if backend is None else to_backend(tensor.data, backend)
            tensor.data = array if dtype is None or array.dtype.kind != "f" else array.astype(dtype)
            tensor.grad = None
        return self

    def __repr__(self) -> str:
        lines = [f"  ({name}): " + repr(child).replace("\n", "\n  ") for name, child in self.named_children()]
        shapes = ", ".join(f"{k} {v.shape}" for k, v in vars(self).items() if isinstance(v, Tensor))
        inside = "\n" + "\n".join(lines) + "\n" if lines else shapes
        return f"{type(self).__name__}({inside})"


class Sequential(Module):
    """Layers one after the other.

    >>> net = tp.nn.Sequential(tp.nn.Linear(4, 8), tp.nn.ReLU(), tp.nn.Linear(8, 2))
    >>> [name for name, _ in net.named_parameters()]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *layers: Module):
        for i, layer in enumerate(layers):
            setattr(self, str(i), layer)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, i: int) -> Module:
        return list(iter(self))[i]
