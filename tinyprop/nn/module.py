"""Module: a layer or a network, something with parameters that maps tensors to a tensor."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from typing import Any, Self

from ..engine.arrays import Array, is_array, to_backend
from ..engine.context import context, current, enter, leave
from ..engine.creation import from_dlpack
from ..engine.errors import GradientError, StateError, explain
from ..engine.guard import check_editable
from ..engine.loading import portable, unportable
from ..engine.stand_in import StandIn
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
    """Whether someone is only looking, as `tp.observe` and `tp.propagate` do: then a module leaves
    its running estimates as they are.

    >>> class Counter(tp.nn.Module):
    ...     def __init__(self):
    ...         self.calls = tp.tensor([0.0])
    ...     def forward(self, x):
    ...         if not tp.nn.is_observing():
    ...             self.calls.data[...] += 1.0
    ...         return x
    >>> counter, x = Counter(), tp.ones(2, 3)
    >>> out, records = counter(x), tp.observe(counter, x)
    >>> counter.calls
    tensor([1.])
    """
    return current().observing


def visiting(
    visit: Callable[..., Callable[[Any], None] | None],
) -> AbstractContextManager[None]:
    """Inside the block, call visit(module, *its arguments) before each call of a module, and what
    it returns, if anything, with the output."""
    return context(visit=visit)


class _Edits:
    """Counts outside of Module: a class whose attributes change loses Python's method cache, in
    Python 3.13 for good after 1000 changes."""

    def __init__(self) -> None:
        self.count = 0


_edits = _Edits()


def edit_count() -> int:
    """How often an attribute of any module has been set. Code that keeps a list of a network's
    modules or tensors also keeps this number: if it has changed since, the list may be out of date.
    A change inside a list or dict that is an attribute is not counted."""
    return _edits.count


class Module:
    """A layer or a network: a `forward`, with tensors and modules as attributes, also in lists,
    tuples and dicts.

    Leaf tensors that require a gradient are parameters. A leaf tensor that does not require one is
    a buffer, saved but not trained, if it is an attribute; in a list, tuple or dict it is not part
    of the state. What `forward` stores on self is neither: an attribute that is first set while the
    module is being called stays out. A new parameter is refused there, because no optimizer would
    know of it.

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

    # What a module declares about itself. A subclass with methods of its own declares it anew: see
    # `nn.declare.declared`.
    #
    # Whether each output depends on one sample only: then batches may be cut, to evaluate large
    # sets or to train on several ranks.
    per_sample = False
    # Whether it draws random numbers for all parts of a batch, in order.
    draws_for_batch = False
    # Whether all it takes from other samples are sums by `tp.nn.over_batch`, over all ranks.
    sums_over_batch = False
    # For theory: whether it applies one function to each value; a `Statistics` for a normaliser; a
    # `Rows` for a layer with random weights. Where nothing is declared, there is no prediction.
    elementwise = False
    statistics: Any = None
    rows: Any = None
    # Names of buffers that take the shape of the state that is loaded.
    resized_by_state: tuple[str, ...] = ()
    # Names that PyTorch's module has for tensors of this one, or "" for what this one lacks.
    torch_names: Mapping[str, str] = {}

    _training = True  # its own mode; see `training`
    _set_by_forward: Set[str] = frozenset()  # names of attributes that are not part of the state

    def forward(self, x: Tensor) -> Tensor:
        """Compute the output for an input; called by module(x)."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def propagate(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer does to the moments of a signal; called by module(state) with a
        `tp.theory.State`, as `tp.propagate` does.

        By default its forward runs, as functions and operators have rules for States. A layer
        whose forward does something else defines this method, in terms of the methods of a State.
        A subclass that changes forward also says anew what it does to States, or lets its forward
        run.

        >>> class Halved(tp.nn.Module):
        ...     def forward(self, x):
        ...         return tp.from_numpy(x.numpy() * 0.5)  # an array, which a State has not
        ...     def propagate(self, state):
        ...         return state * 0.5
        >>> tp.propagate(Halved(), [2.0], [[4.0]])[0].variance
        array([1.])
        """
        return self.forward(*args, **kwargs)

    def pre_activation(self, output: Any, *args: Any, **kwargs: Any) -> Tensor | None:
        """For a layer with weights: its weighted sums in front of the activation, for the output
        and the arguments of a call. `tp.observe` asks for it. A layer without weights has none.

        >>> tp.nn.ReLU().pre_activation(tp.ones(2), tp.ones(2)) is None
        True
        """
        return None

    def refresh(self, *args: Any, **kwargs: Any) -> None:
        """Measure the layer's input for a fixed set of samples. Define this in a layer of your own
        that needs such measurements: a run calls it at first and then every `refresh` steps, and
        `tp.nn.refresh(net, x)` calls it for all layers of a network. What it measures belongs in
        buffers, so that it is saved.

        >>> class Largest(tp.nn.Module):
        ...     def __init__(self):
        ...         self.largest = tp.ones(1)
        ...     def forward(self, x):
        ...         return x / self.largest
        ...     def refresh(self, x):
        ...         self.largest.data[...] = x.data.max()
        >>> net = Largest()
        >>> tp.nn.refresh(net, tp.tensor([[1.0, 4.0]]))
        >>> net(tp.tensor([[8.0]]))
        tensor([[2.]])
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        here = current()
        after_call = here.visit(self, *args, **kwargs) if here.visit else None
        running, inputs = (*here.running, self), (*here.inputs, args, kwargs)
        token = enter(here.changed(running=running, inputs=inputs))
        try:
            if args and isinstance(args[0], StandIn):
                out = args[0].through(self, args, kwargs)
            else:
                out = self.forward(*args, **kwargs)
        finally:
            leave(token)
        if after_call:
            after_call(out)
        return out

    def __setattr__(self, attribute: str, value: Any) -> None:
        running = current().running
        is_running = any(module is self for module in running)
        if running:  # it, or a module that makes this one in its forward
            self._refuse_new_parameters(attribute, value)
        if is_running and self._is_result(attribute):
            vars(self).setdefault("_set_by_forward", set()).add(attribute)
        else:
            vars(self).get("_set_by_forward", set()).discard(attribute)
            _name_tensors(attribute, value)
        super().__setattr__(attribute, value)
        _edits.count += 1

    def _is_result(self, attribute: str) -> bool:
        """Whether an attribute that `forward` sets is a result that it stores, rather than state. A
        buffer that `forward` replaces remains state."""
        if attribute in self._set_by_forward:
            return True
        present_value = vars(self).get(attribute)
        holds_state = any(True for _ in _flatten(attribute, present_value))
        return not holds_state

    def _refuse_new_parameters(self, attribute: str, value: Any) -> None:
        """Refuse a parameter, or a module that has some, which a `forward` makes: an optimizer
        would not know of it. Inputs, and what is part of the network already, may be stored."""
        maker = current().running[-1]
        what = f"self.{attribute} = ..." if maker is self else f"make the {type(self).__name__}"
        for name, member in _flatten(attribute, value):
            if isinstance(member, Tensor):
                is_trained = member.node is None and member.requires_grad
            else:
                is_trained = any(True for _ in member.parameters())
            if is_trained and not _is_known(member):
                kind = "parameter" if isinstance(member, Tensor) else type(member).__name__
                raise GradientError(
                    f"a new {kind} as {name!r} of a {type(self).__name__}, made by the forward of "
                    f"{type(maker).__name__}",
                    "parameters exist before the first call: one that is made later is in no "
                    "optimizer, and would never be trained",
                    f"{what} in __init__ of {type(maker).__name__}",
                )

    def _members(self) -> Iterator[tuple[str, "Tensor | Module"]]:
        """The tensors and modules of this module's own state, by name."""
        # A copy, because a forward may set attributes while it goes through its layers.
        for attribute, value in tuple(vars(self).items()):
            if not isinstance(value, (Tensor, Module, list, tuple, dict)):
                continue
            if attribute in self._set_by_forward:
                continue
            for name, member in _flatten(attribute, value):
                if isinstance(member, Module):
                    yield name, member
                    continue
                is_leaf = member.node is None
                is_attribute = name == attribute
                if is_leaf and (member.requires_grad or is_attribute):
                    yield name, member

    def _named_modules(self) -> Iterator[tuple[str, "Module"]]:
        """This module and all modules inside it, each once, with the prefix that the names of its
        members have here: "" or "blocks.0."."""
        seen: set[Module] = set()
        stack: list[tuple[str, Module]] = [("", self)]
        while stack:
            prefix, module = stack.pop()
            if module in seen:
                continue
            seen.add(module)
            yield prefix, module
            children = [(f"{prefix}{name}.", child) for name, child in module.named_children()]
            stack.extend(reversed(children))

    def _named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers by full name, own ones first; a tied tensor comes once, under its
        first name."""
        seen: set[Tensor] = set()
        for prefix, module in self._named_modules():
            for name, member in module._members():
                if isinstance(member, Tensor) and member not in seen:
                    seen.add(member)
                    yield prefix + name, member

    def named_children(self) -> Iterator[tuple[str, "Module"]]:
        """The modules directly inside this one, by name."""
        for name, member in self._members():
            if isinstance(member, Module):
                yield name, member

    def modules(self) -> Iterator["Module"]:
        """This module and all modules inside it, each once."""
        for _, module in self._named_modules():
            yield module

    def __iter__(self) -> Iterator["Module"]:
        """The layers, in order."""
        for _, child in self.named_children():
            yield child

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors that are trained, by name; a tied tensor comes once, under its first name."""
        for name, tensor in self._named_tensors():
            if tensor.requires_grad:
                yield name, tensor

    def parameters(self) -> Iterator[Tensor]:
        """The tensors that are trained, each once."""
        for _, tensor in self.named_parameters():
            yield tensor

    def buffers(self) -> Iterator[Tensor]:
        """The tensors that are saved but not trained, each once."""
        for _, tensor in self._named_tensors():
            if not tensor.requires_grad:
                yield tensor

    def state_dict(self) -> dict[str, Array]:
        """A copy of every parameter and buffer, by name; a tied tensor is saved once, under its
        first name."""
        return {name: tensor._data.copy() for name, tensor in self._named_tensors()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set every parameter and buffer from a state of the same names and shapes; all of them or
        none.

        A state of PyTorch is taken as it is: its tensors, its names (PReLU's `weight`), what only
        PyTorch has (`num_batches_tracked`), and tied tensors under several names."""
        tensors = dict(self._named_tensors())
        state = self._by_first_names(state)
        resized = {
            prefix + name
            for prefix, module in self._named_modules()
            for name in module.resized_by_state
        }
        _check_names(state, tensors)
        state = {name: _as_array(state[name]) for name in tensors}
        for name, tensor in tensors.items():
            _check_value(name, state[name], tensor, any_shape=name in resized)
            check_editable(tensor, name)
        for name, tensor in tensors.items():
            value = to_backend(state[name], tensor.backend).astype(tensor.dtype)
            if value.shape == tensor.shape:
                tensor._data[...] = value
            else:
                tensor._data = value
                _edits.count += 1

    def _by_first_names(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """A state with the names that tensors have here: each its first one, and none of PyTorch's
        own. A tensor that the state has under several names must have the same values in each."""
        first_names = self._first_names()
        found: dict[str, Any] = {}
        for name, value in state.items():
            first = first_names.get(name, name)
            if first == "":
                continue
            if first in found and not _same_values(found[first], value):
                raise StateError(
                    f"a state in which {name!r} has other values than the same tensor as {first!r}",
                    "a tied tensor is one tensor under several names",
                    "build the network as it was when the state was saved",
                )
            found[first] = value
        return found

    def _first_names(self) -> dict[str, str]:
        """For each name that a state may have for a tensor, its first name; "" for what is left
        out. Unlike `_named_tensors`, this goes through every place of a shared module."""
        first_of: dict[Tensor, str] = {tensor: name for name, tensor in self._named_tensors()}
        names: dict[str, str] = {}
        for place, module in places(self):
            prefix = f"{place}." if place else ""
            for name, member in module._members():
                if isinstance(member, Tensor):
                    names[prefix + name] = first_of[member]
            for torch_name, own_name in module.torch_names.items():
                first = names[prefix + own_name] if own_name else ""
                names.setdefault(prefix + torch_name, first)
        return names

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
            array = tensor._data
            if backend is not None:
                array = to_backend(array, backend)
            is_float = array.dtype.kind == "f"
            if dtype is not None and is_float:
                array = array.astype(dtype)
            tensor.data = array
            tensor.grad = None
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        """As usual, but for a class of a file that tinyprop imported: another process imports the
        file, too."""
        usual = super().__reduce_ex__(protocol)
        kind = portable(type(self))
        if kind is type(self):
            return usual
        return (_new, (kind,), *usual[2:])

    def extra_repr(self) -> str:
        """What the repr shows in parentheses: the shapes of the module's own tensors, unless a
        subclass shows something else.

        >>> tp.nn.Conv2d(3, 8, kernel_size=5, padding=2).extra_repr()
        '3, 8, 5, stride=1, padding=2'
        """
        parts = []
        for name, member in self._members():
            if isinstance(member, Tensor):
                parts.append(f"{name} {member.shape}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        kind = type(self).__name__
        extra = self.extra_repr()
        children = [f"({name}): {child!r}" for name, child in self.named_children()]
        if not children:
            return f"{kind}({extra})"
        lines = [extra, *children] if extra else children
        inside = "\n".join(lines).replace("\n", "\n  ")
        return f"{kind}(\n  {inside}\n)"


def definer(kind: type, method: str) -> type:
    """The class that defines the method which objects of this kind have."""
    return next(base for base in kind.__mro__ if method in vars(base))


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Tensor | Module]]:
    """A tensor or module under this name, or those in a list, tuple or dict, as "blocks.0" or
    "heads.left"."""
    if isinstance(value, (Tensor, Module)):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for index, element in enumerate(value):
            yield from _flatten(f"{name}.{index}", element)
    elif isinstance(value, dict):
        for key, element in value.items():
            yield from _flatten(f"{name}.{key}", element)


def _is_known(member: Tensor | Module) -> bool:
    """Whether this is part of a module that is running, or an input of one."""
    here = current()
    for _, given in _flatten("", here.inputs):
        if given is member:
            return True
    for module in here.running:
        if any(part is member for part in (*module.modules(), *module.parameters())):
            return True
    return False


def _name_tensors(attribute: str, value: Any) -> None:
    """Give each tensor in the value of an attribute its name, which error messages and `tp.draw`
    show."""
    for name, member in _flatten(attribute, value):
        if isinstance(member, Tensor):
            member.name = name
        else:
            for inner_name, tensor in member._named_tensors():
                tensor.name = f"{name}.{inner_name}"


def places(
    module: Module, place: str = "", above: tuple[Module, ...] = ()
) -> Iterator[tuple[str, Module]]:
    """A module and all modules inside it with the names of their places, "" for itself. A shared
    module comes once for each place."""
    if module in above:  # a layer that refers back to its network
        return
    yield place, module
    for name, child in module.named_children():
        inner = f"{place}.{name}" if place else name
        yield from places(child, inner, (*above, module))


def _as_array(value: Any) -> Any:
    """A tensor, ours or of another library, as an array that shares its memory; arrays, and what
    cannot be in a state, as they are."""
    if is_array(value) or not hasattr(value, "__dlpack__"):
        return value
    if hasattr(value, "detach"):  # a state is numbers: there is no gradient to lose
        value = value.detach()
    return from_dlpack(value)._data


def _same_values(first: Any, second: Any) -> bool:
    """Whether two entries of a state are equal, NaN included."""
    if first is second:
        return True
    first, second = _as_array(first), _as_array(second)
    if not (is_array(first) and is_array(second)) or first.shape != second.shape:
        return False
    either_nan = (first != first) & (second != second)
    return bool(((first == second) | either_nan).all())


def _check_names(state: Mapping[str, Array], tensors: Mapping[str, Tensor]) -> None:
    """Refuse a state that lacks a name, or has one that the network does not have."""
    missing = [f"no {name!r}" for name in sorted(tensors.keys() - state.keys())]
    unknown = [f"unknown {name!r}" for name in sorted(state.keys() - tensors.keys())]
    wrong = missing + unknown
    if wrong:
        more = " ..." if len(wrong) > 6 else ""
        raise StateError(
            f"a state with {', '.join(wrong[:6])}{more}",
            "a state has exactly the names of the network's parameters and buffers",
            "build the network as it was when the state was saved",
        )


def _check_value(name: str, value: Any, tensor: Tensor, any_shape: bool) -> None:
    """Refuse a value for a tensor that is no array, or has another shape or kind of numbers; with
    `any_shape`, another number of axes."""
    if not is_array(value):
        got = type(value).__name__
    elif any_shape and value.ndim == tensor.ndim and value.dtype.kind == tensor.dtype.kind:
        return
    elif value.shape != tensor.shape or value.dtype.kind != tensor.dtype.kind:
        got = f"{value.dtype} {value.shape}"
    else:
        return
    raise StateError(
        f"{name!r} as {got}",
        f"here it is {tensor.dtype} {tensor.shape}",
        "build the network as it was when the state was saved",
    )


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
            got = f"{kind} of a {type(layer).__name__}, number {len(self)}"
            raise TypeError(explain(got, "each element is a Module", self._hint_for(layer)))
        setattr(self, str(len(self)), layer)
        return self

    def _hint_for(self, element: Any) -> str:
        """What to write instead of an element that is no module."""
        if isinstance(element, (list, tuple)):
            if isinstance(self, Sequential):
                return f"{type(self).__name__}(*layers)"
            return "one list of modules, not nested"
        if isinstance(element, type) and issubclass(element, Module):
            return f"{element.__name__}(...), an object instead of its class"
        return (
            "a layer, for instance nn.ReLU() instead of F.relu; a class with a forward "
            "for anything else"
        )

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


def _new(kind: Any) -> Any:
    """An empty module, which pickle and copy fill. `kind` is as `portable` has it."""
    found = unportable(kind)
    return found.__new__(found)
