"""Module: a layer or a network, something with parameters that maps tensors to a tensor."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from typing import Any, Self

from ..engine.arrays import Array, array_module, is_array, to_backend
from ..engine.context import context, current, enter, leave
from ..engine.errors import StateError, explain
from ..engine.guard import check_editable
from ..engine.tensor import Tensor


def evaluating() -> AbstractContextManager[None]:
    """Run every module in evaluation mode inside the block, without writing to any: other threads
    do not notice.

    >>> layer = tp.nn.Dropout()
    >>> with tp.nn.evaluating():
    ...     layer(tp.tensor([1.0, 2.0]))
    tensor([1., 2.])
    >>> layer.training
    True
    """
    return context(evaluating=True)


def observing() -> AbstractContextManager[None]:
    """Inside the block, modules do what their mode says, but none moves its running estimates."""
    return context(observing=True)


def is_observing() -> bool:
    return current().observing


def visiting(
    visit: Callable[["Module", Any], Callable[[Tensor], None] | None],
) -> AbstractContextManager[None]:
    """Inside the block, call visit(module, its input) before each call of a module, and what it
    returns, if anything, with the output."""
    return context(visit=visit)


class Module:
    """A layer or a network: a `forward`, with tensors and modules as attributes, also in lists,
    tuples and dicts.

    Leaf tensors that require a gradient are parameters. A leaf tensor that does not require one is
    a buffer, saved but not trained, if it is an attribute; in a list, tuple or dict it is not part
    of the state. What `forward` stores on self is neither, whatever it is: an attribute that is
    first set while the module is being called stays out.

    >>> class Net(tp.nn.Module):
    ...     def __init__(self):
    ...         self.blocks = [tp.nn.Linear(3, 3), tp.nn.Linear(3, 3)]
    ...     def forward(self, x):
    ...         self.hidden = self.blocks[0](x)
    ...         return self.blocks[1](self.hidden)
    >>> net, x = Net(), tp.tensor([[1.0, 2.0, 3.0]])
    >>> out = net(x)
    >>> [name for name, _ in net.named_parameters()]
    ['blocks.0.weight', 'blocks.0.bias', 'blocks.1.weight', 'blocks.1.bias']
    >>> [name for name, _ in net.named_children()]
    ['blocks.0', 'blocks.1']
    >>> [type(module).__name__ for module in net.modules()]
    ['Net', 'Linear', 'Linear']
    >>> sum(p.size for p in net.parameters()), [b.shape for b in tp.nn.BatchNorm(3).buffers()]
    (24, [(3,), (3,)])
    >>> other = Net().eval()
    >>> other.load_state_dict(net.state_dict())
    >>> bool((other(x).data == out.data).all()), other.training, other.train().training
    (True, False, True)
    >>> other.to(dtype="float64").blocks[0].weight.dtype
    dtype('float64')
    """

    # Attributes for the repr: "p" (its value), "stride=" (with its name), or "bias=True" (unless it
    # has that value).
    shown = ""
    # whether each output depends on one sample only: a declaration that you may make for a module of
    # your own, so that batches of it may be cut (evaluation of large sets, training on ranks)
    per_sample = False
    # whether it draws, in order, for all parts of a batch; or sums over them
    draws_for_batch = sums_over_batch = False
    edits, _training = 0, True  # how often an attribute of any module was set, and its own mode
    _set_by_forward: Set[str] = frozenset()  # names of attributes that are not part of the state

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output for an input; called by module(x)."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        here = current()
        tell = here.visit(self, *args) if here.visit else None
        before = enter(here.changed(running=(*here.running, self)))
        try:
            out = self.forward(*args, **kwargs)
        finally:
            leave(before)
        if tell:
            tell(out)
        return out

    def __setattr__(self, attribute: str, value: Any) -> None:
        by_forward: set[str] = vars(self).setdefault("_set_by_forward", set())
        new = attribute in by_forward or not any(_reachable("", vars(self).get(attribute)))
        if new and any(module is self for module in current().running):
            by_forward.add(attribute)
        else:
            by_forward.discard(attribute)
            for name, found in _reachable(attribute, value):
                if isinstance(found, Tensor):
                    found.name = name
                else:
                    for inner, tensor in found._named_tensors():
                        tensor.name = f"{name}.{inner}"
        super().__setattr__(attribute, value)
        Module.edits += 1

    def _members(self) -> Iterator[tuple[str, "Tensor | Module"]]:
        """The tensors and modules of this module's own state, by name."""
        for attribute, value in vars(self).items():
            if (
                isinstance(value, (Tensor, Module, list, tuple, dict))
                and attribute not in self._set_by_forward
            ):
                for name, found in _reachable(attribute, value):
                    leaf = isinstance(found, Tensor) and found.node is None
                    if isinstance(found, Module) or (
                        leaf and (found.requires_grad or name == attribute)
                    ):
                        yield name, found

    def _all_names(self, above: tuple["Module", ...] = ()) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers by full name, own ones first; a tied tensor comes once under each
        of its names."""
        for name, found in self._members():
            if isinstance(found, Tensor):
                yield name, found
        above = (*above, self)
        for name, child in self.named_children():
            if not any(child is module for module in above):  # a child may refer back to its parent
                for inner, tensor in child._all_names(above):
                    yield f"{name}.{inner}", tensor

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers, each once, under its first name."""
        seen: set[Tensor] = set()
        for name, tensor in self._all_names():
            if tensor not in seen:
                seen.add(tensor)
                yield name, tensor

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """The modules directly inside this one, by name."""
        return ((name, found) for name, found in self._members() if isinstance(found, Module))

    def modules(self) -> Iterator["Module"]:
        """This module and all modules inside it, each once."""
        seen: set[Module] = set()
        stack: list[Module] = [self]
        while stack:
            module = stack.pop()
            if module not in seen:
                seen.add(module)
                yield module
                stack += reversed([child for _, child in module.named_children()])

    def __iter__(self) -> Iterator["Module"]:
        """The layers, in order."""
        return (child for _, child in self.named_children())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are trained, by name; one that is reachable under several names comes
        under the first."""
        return ((name, tensor) for name, tensor in self._named_tensors() if tensor.requires_grad)

    def parameters(self) -> Iterator[Tensor]:
        """The tensors that are trained, each once."""
        return (tensor for _, tensor in self.named_parameters())

    def buffers(self) -> Iterator[Tensor]:
        """The tensors that are saved but not trained, each once."""
        return (tensor for _, tensor in self._named_tensors() if not tensor.requires_grad)

    def state_dict(self) -> dict[str, Array]:
        """A copy of every parameter and buffer, by name; a tied tensor is saved once, under its
        first name."""
        return {name: tensor._data.copy() for name, tensor in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Set every parameter and buffer from a state of the same names and shapes; all of them or
        none.

        A tied tensor may be given under any of its names, or under several with equal values, as by
        tinyprop 0.1."""
        names: dict[Tensor, list[str]] = {}
        for name, tensor in self._all_names():
            names.setdefault(tensor, []).append(name)
        unknown = state.keys() - {name for several in names.values() for name in several}
        missing = [several[0] for several in names.values() if not state.keys() & set(several)]
        if missing or unknown:
            wrong = [f"no {name!r}" for name in sorted(missing)] + [
                f"unknown {name!r}" for name in sorted(unknown)
            ]
            raise StateError(
                f"a state with {', '.join(wrong[:6])}{' ...' if len(wrong) > 6 else ''}",
                "a state has exactly the names of the network's parameters and buffers",
                "build the network as it was when the state was saved",
            )
        values = {}
        for tensor, several in names.items():
            values[tensor] = _checked(
                tensor, {name: state[name] for name in several if name in state}
            )
            check_editable(tensor, several[0])
        for tensor, value in values.items():
            tensor._data[...] = to_backend(value, tensor.backend).astype(tensor.dtype)

    @property
    def training(self) -> bool:
        """Whether it behaves as in training (batch statistics, dropout): its own mode, unless
        `evaluating()`."""
        return self._training and not current().evaluating

    @training.setter
    def training(self, mode: bool) -> None:
        self._training = mode

    def train(self, mode: bool = True) -> Self:
        """Switch this module and all modules inside it to training behaviour: batch statistics,
        dropout."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        """Switch to the behaviour for validation and testing."""
        return self.train(False)

    def to(self, backend: str | None = None, dtype: Any = None) -> Self:
        """Move all parameters and buffers to a backend, or convert the floating-point ones to
        another dtype."""
        for _, tensor in self._named_tensors():
            array = tensor._data if backend is None else to_backend(tensor._data, backend)
            tensor.data = array if dtype is None or array.dtype.kind != "f" else array.astype(dtype)
            tensor.grad = None
        return self

    def extra_repr(self) -> str:
        """What the repr shows in parentheses: the attributes in `shown`, or the shapes of the
        tensors.

        >>> tp.nn.Conv2d(3, 8, kernel_size=5, padding=2).extra_repr()
        '3, 8, 5, stride=1, padding=2'
        """
        parts = []
        for entry in self.shown.split():
            name, named, usual = entry.partition("=")
            value = getattr(self, name)
            if usual == "True":  # a tensor that a layer may have, such as a bias
                value = value is not None and value is not False
            if repr(value) != usual:
                parts.append(f"{name}={value!r}" if named else repr(value))
        tensors = (
            f"{name} {found.shape}" for name, found in self._members() if isinstance(found, Tensor)
        )
        return ", ".join(parts if self.shown else tensors)

    def __repr__(self) -> str:
        lines = [f"({name}): {child!r}" for name, child in self.named_children()]
        extra = self.extra_repr()
        if not lines:
            return f"{type(self).__name__}({extra})"
        inside = "\n".join([extra] * bool(extra) + lines).replace("\n", "\n  ")
        return f"{type(self).__name__}(\n  {inside}\n)"


def _reachable(name: str, value: Any) -> Iterator[tuple[str, Tensor | Module]]:
    """A tensor or module under this name, or those in a list, tuple or dict, as "blocks.0" or
    "heads.left"."""
    if isinstance(value, (Tensor, Module)):
        yield name, value
    elif isinstance(value, (list, tuple, dict)):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _reachable(f"{name}.{key}", inner)


def _checked(tensor: Tensor, given: Mapping[str, Array]) -> Array:
    """The value for a tensor that a state gives under one or several names."""
    first_name, first = next(iter(given.items()))
    for name, value in given.items():
        if (
            not is_array(value)
            or value.shape != tensor.shape
            or value.dtype.kind != tensor.dtype.kind
        ):
            got = f"{value.dtype} {value.shape}" if is_array(value) else type(value).__name__
            raise StateError(
                f"{name!r} as {got}",
                f"here it is {tensor.dtype} {tensor.shape}",
                "build the network as it was when the state was saved",
            )
        if value is not first and not array_module(value).array_equal(value, first, equal_nan=True):
            raise StateError(
                f"different values for {first_name!r} and {name!r}",
                "both are names of one tensor here",
                "a network in which they are not tied",
            )
    return first


class ModuleList(Module):
    """Modules by number, for a `forward` that goes through them itself.

    >>> blocks = tp.nn.ModuleList([tp.nn.Linear(3, 3) for _ in range(2)])
    >>> blocks.append(tp.nn.Linear(3, 1))
    ModuleList(
      (0): Linear(3, 3)
      (1): Linear(3, 3)
      (2): Linear(3, 1)
    )
    """

    def __init__(self, layers: Iterable[Module] = ()):
        if isinstance(layers, Module) and not isinstance(layers, ModuleList):
            got = f"ModuleList({type(layers).__name__}(...))"
            raise TypeError(explain(got, "it takes modules in a list", "ModuleList([layer])"))
        for layer in layers:
            self.append(layer)

    def append(self, layer: Module) -> Self:
        """Add a module at the end."""
        if not isinstance(layer, Module):
            kind = type(self).__name__
            if isinstance(layer, (list, tuple)):
                hint = (
                    f"{kind}(*layers)"
                    if isinstance(self, Sequential)
                    else "one list of modules, not nested"
                )
            elif isinstance(layer, type) and issubclass(layer, Module):
                hint = f"{layer.__name__}(...), an object instead of its class"
            else:
                hint = (
                    "a layer, for instance nn.ReLU() instead of F.relu; a class with a forward "
                    "for anything else"
                )
            got = f"{kind} of a {type(layer).__name__}, number {len(self)}"
            raise TypeError(explain(got, "each element is a Module", hint))
        setattr(self, str(len(self)), layer)
        return self

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, i: int) -> Module:
        return list(self)[i]


class Sequential(ModuleList):
    """Layers one after the other.

    >>> net = tp.nn.Sequential(tp.nn.Linear(4, 8), tp.nn.ReLU(), tp.nn.Linear(8, 2))
    >>> [name for name, _ in net.named_parameters()]
    ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *layers: Module):
        super().__init__(layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x
