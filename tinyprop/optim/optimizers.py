"""Optimizers: they hold the parameters, and what they remember of each between steps."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..engine.arrays import (
    Array,
    HostArray,
    array_module,
    backend_of,
    host_array,
    to_backend,
    to_numpy,
)
from ..engine.errors import ShapeError, StateError, explain
from ..engine.guard import check_editable
from ..engine.tensor import Tensor
from ..nn.module import Module
from .updates import adam, rmsprop, sgd


class Optimizer:
    """Updates parameters in place from their gradients. `lr` may be changed between steps.

    A parameter that is given twice is updated once. Weight decay is added to the gradient, as in
    PyTorch.

    >>> w = tp.tensor([1.0], requires_grad=True)
    >>> optimizer = tp.optim.SGD([w], lr=0.1)
    >>> (w * w).sum().backward()
    >>> optimizer.zero_grad()
    >>> w.grad is None
    True
    """

    # names of arrays of the shape of a parameter that are saved between steps
    remembers: tuple[str, ...] = ()
    # whether weight decay acts on a parameter
    decays: Callable[[Tensor], bool] = staticmethod(lambda p: True)

    def __init__(self, params: Iterable[Tensor], lr: float, **settings: float):
        self.params = self._checked(params)
        _check_numbers(lr=lr, **settings)
        self.lr = lr
        self.memory: dict[str, list[Array]] = {}  # for each name, an array for each parameter
        for name in self.remembers:
            self.memory[name] = [array_module(p._data).zeros_like(p._data) for p in self.params]

    def _checked(self, params: Iterable[Tensor]) -> list[Tensor]:
        """The parameters, each once, or an error for anything that cannot be one."""
        call = type(self).__name__
        if isinstance(params, (Module, Tensor)):
            got = f"{call}({type(params).__name__}(...))"
            hint = f"{call}(net.parameters())" if isinstance(params, Module) else f"{call}([w])"
            raise TypeError(explain(got, "it takes several tensors", hint))
        given = list(params)
        if not given:
            got = f"{call} without parameters"
            raise ValueError(explain(got, "it needs at least one", "net.parameters()"))
        for p in given:
            _check_parameter(p, call)
        return list(dict.fromkeys(given))

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        _check_numbers(lr=self.lr)  # it may have been changed
        due = []
        for i, p in enumerate(self.params):
            if p.grad is None:
                continue
            check_editable(p)
            if p.grad._data.shape != p._data.shape:
                name = p.name or "a parameter"
                got = f"a gradient of shape {p.grad.shape} for {name} of shape {p.shape}"
                hint = "backward(), which sets gradients of the right shape"
                raise ShapeError(got, "they must be equal", hint)
            self._move_memory(i, p)
            due.append(i)
        if due:
            self.update(due)

    def _move_memory(self, i: int, p: Tensor) -> None:
        """Let what is remembered of a parameter follow it where Module.to has moved it."""
        weights = p._data
        for arrays in self.memory.values():
            remembered = arrays[i]
            is_moved = type(remembered) is not type(weights) or remembered.dtype != weights.dtype
            if is_moved:
                arrays[i] = to_backend(remembered, p.backend).astype(p.dtype)

    def update(self, due: list[int]) -> None:
        """Update the parameters with these numbers."""
        raise NotImplementedError

    def by_decay(self, due: list[int], weight_decay: float) -> list[tuple[list[int], float]]:
        """These parameters in groups, each with its weight decay."""
        decayed: list[int] = []
        others: list[int] = []
        for i in due:
            group = decayed if self.decays(self.params[i]) else others
            group.append(i)
        groups = [(decayed, weight_decay), (others, 0.0)]
        return [(group, decay) for group, decay in groups if group]

    def arrays(self, due: list[int]) -> Any:
        """Their weights, their gradients, and what is remembered of them."""
        weights, gradients = [], []
        for i in due:
            p = self.params[i]
            assert p.grad is not None
            weights.append(p._data)
            gradients.append(p.grad._data)
        memory = [[arrays[i] for i in due] for arrays in self.memory.values()]
        return [weights, gradients, *memory]

    def _named_memory(self) -> dict[str, Array]:
        """What is remembered, as velocity.0, velocity.1, ..."""
        named = {}
        for name, arrays in self.memory.items():
            for i, array in enumerate(arrays):
                named[f"{name}.{i}"] = array
        return named

    def state_dict(self) -> dict[str, Array]:
        """A copy of what is remembered of each parameter; the learning rate is saved with the
        schedule."""
        return {name: array.copy() for name, array in self._named_memory().items()}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore what `state_dict` returned, for the same parameters in the same order."""
        own = self._named_memory()
        own_shapes = {name: array.shape for name, array in own.items()}
        shapes = {name: array.shape for name, array in state.items()}
        if shapes != own_shapes:
            remembered = " and ".join(self.remembers)
            rule = (
                f"a state of {type(self).__name__} holds {remembered} "
                f"for each of {len(self.params)} parameters, of its shape"
            )
            hint = "make the optimizer with the same parameters in the same order"
            raise StateError("the state of another optimizer", rule, hint)
        for name, array in own.items():
            array[...] = to_backend(state[name], backend_of(array))


def _check_numbers(**numbers: float) -> None:
    for name, value in numbers.items():
        if not 0 <= value < float("inf"):
            raise ValueError(
                explain(f"{name}={value}", "it is a finite number >= 0", f"{name}=0.01")
            )


def _check_parameter(p: Any, call: str) -> None:
    """Refuse what an optimizer cannot update, or would update in vain."""
    if not isinstance(p, Tensor):
        got = f"{call} with a {type(p).__name__} as a parameter"
        hint = "net.parameters(), or a list of tensors"
        raise TypeError(explain(got, "parameters are tensors", hint))
    if p.node is not None:
        got = f"{call} with a computed tensor of shape {p.shape} as a parameter"
        rule = (
            "parameters are leaves: an update of a result does not change what it was computed from"
        )
        hint = "the tensors it was computed from; or a copy, as tp.tensor(t.detach())"
        raise ValueError(explain(got, rule, hint))
    if not p.requires_grad:
        got = f"{call} with a tensor of shape {p.shape} that does not require a gradient"
        hint = "tp.tensor(..., requires_grad=True)"
        raise ValueError(explain(got, "it would never be updated", hint))


class SGD(Optimizer):
    """Stochastic gradient descent with momentum.

    >>> w = tp.tensor([1.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> tp.optim.SGD([w], lr=0.1).step()
    >>> w
    tensor([0.8], requires_grad=True)
    """

    remembers = ("velocity",)

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.9, weight_decay: float = 0.0
    ):
        super().__init__(params, lr, momentum=momentum, weight_decay=weight_decay)
        self.momentum = momentum
        self.weight_decay = weight_decay

    def update(self, due: list[int]) -> None:
        for group, weight_decay in self.by_decay(due, self.weight_decay):
            w, g, velocity = self.arrays(group)
            sgd(w, g, velocity, self.lr, self.momentum, weight_decay)


class RMSProp(Optimizer):
    """Gradients divided by their running root mean square: Tieleman and Hinton (2012).

    >>> w = tp.tensor([1.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> tp.optim.RMSProp([w], lr=0.01, alpha=0.0).step()
    >>> round(w.item(), 4)
    0.99
    """

    remembers = ("square",)

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr, alpha=alpha, eps=eps, weight_decay=weight_decay)
        if alpha > 1:
            raise ValueError(explain(f"alpha={alpha}", "it is a number from 0 to 1", "alpha=0.99"))
        self.alpha = alpha
        self.eps = eps
        self.weight_decay = weight_decay

    def update(self, due: list[int]) -> None:
        for group, weight_decay in self.by_decay(due, self.weight_decay):
            w, g, square = self.arrays(group)
            rmsprop(w, g, square, self.lr, self.alpha, self.eps, weight_decay)


class Adam(Optimizer):
    """Running means of gradients, divided by their running root mean squares: Kingma and Ba (2015).

    >>> w = tp.tensor([1.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> tp.optim.Adam([w], lr=0.1).step()
    >>> round(w.item(), 4)
    0.9
    """

    remembers = ("mean", "square")

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr, eps=eps, weight_decay=weight_decay)
        are_valid = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
        if not are_valid:
            rule = "two numbers from 0 to less than 1"
            raise ValueError(explain(f"betas={betas}", rule, "betas=(0.9, 0.999)"))
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.steps = [0] * len(self.params)  # how often each parameter was updated

    def update(self, due: list[int]) -> None:
        for i in due:
            self.steps[i] += 1
        counts = {self.steps[i] for i in due}  # several only if some had no gradient at times
        for step in sorted(counts):
            same = [i for i in due if self.steps[i] == step]
            for group, weight_decay in self.by_decay(same, self.weight_decay):
                w, g, mean, square = self.arrays(group)
                adam(w, g, mean, square, self.lr, *self.betas, self.eps, weight_decay, step)

    def state_dict(self) -> dict[str, Array]:
        return super().state_dict() | {"steps": host_array(self.steps)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        memory = {name: array for name, array in state.items() if name != "steps"}
        super().load_state_dict(memory)
        steps: HostArray = to_numpy(state["steps"]) if "steps" in state else host_array([])
        if steps.shape != (len(self.params),):
            raise StateError(
                "a state without the step counts of Adam",
                "it has one per parameter",
                "save it again",
            )
        self.steps = [int(step) for step in steps]
