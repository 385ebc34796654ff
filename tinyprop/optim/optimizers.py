"""Optimizers: they hold the parameters, and what is remembered of each between steps."""

from collections.abc import Iterable, Mapping
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

    def __init__(self, params: Iterable[Tensor], lr: float, **settings: float):
        self.params = self._checked(params)
        for name, value in {"lr": lr, **settings}.items():
            if not 0 <= value < float("inf"):
                raise ValueError(
                    explain(f"{name}={value}", "it is a finite number >= 0", f"{name}=0.01")
                )
        self.lr = lr
        self.memory = {
            name: [array_module(p._data).zeros_like(p._data) for p in self.params]
            for name in self.remembers
        }

    def _checked(self, params: Iterable[Tensor]) -> list[Tensor]:
        """The parameters, each once, or an error for anything that cannot be one."""
        call = type(self).__name__
        if isinstance(params, (Module, Tensor)):
            hint = f"{call}(net.parameters())" if isinstance(params, Module) else f"{call}([w])"
            raise TypeError(
                explain(f"{call}({type(params).__name__}(...))", "it takes several tensors", hint)
            )
        given = list(params)
        if not given:
            raise ValueError(
                explain(f"{call} without parameters", "it needs at least one", "net.parameters()")
            )
        for p in given:
            if not isinstance(p, Tensor):
                got, rule = (
                    f"{call} with a {type(p).__name__} as a parameter",
                    "parameters are tensors",
                )
                raise TypeError(explain(got, rule, "net.parameters(), or a list of tensors"))
            if p.node is not None:
                got = f"{call} with a computed tensor of shape {p.shape} as a parameter"
                rule = (
                    "parameters are leaves: an update of a result does not change what it was "
                    "computed from"
                )
                hint = "the tensors it was computed from; or a copy, as tp.tensor(t.detach())"
                raise ValueError(explain(got, rule, hint))
            if not p.requires_grad:
                got = f"{call} with a tensor of shape {p.shape} that does not require a gradient"
                raise ValueError(
                    explain(got, "it would never be updated", "tp.tensor(..., requires_grad=True)")
                )
        return list(dict.fromkeys(given))

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        if not 0 <= self.lr < float("inf"):  # it may have been changed
            raise ValueError(explain(f"lr={self.lr}", "it is a finite number >= 0", "lr=0.01"))
        due = [i for i, p in enumerate(self.params) if p.grad is not None]
        for i in due:
            p = self.params[i]
            check_editable(p, p.name or "a parameter")
            if p.grad is not None and p.grad.shape != p.shape:
                got = (
                    f"a gradient of shape {p.grad.shape} for {p.name or 'a parameter'} of shape "
                    f"{p.shape}"
                )
                raise ShapeError(
                    got, "they must be equal", "backward(), which sets gradients of the right shape"
                )
            # these follow a parameter that was moved by Module.to
            for arrays in self.memory.values():
                if arrays[i].dtype != p.dtype or backend_of(arrays[i]) != p.backend:
                    arrays[i] = to_backend(arrays[i], p.backend).astype(p.dtype)
        if due:
            self.update(due)

    def update(self, due: list[int]) -> None:
        """Update the parameters with these numbers."""
        raise NotImplementedError

    def arrays(self, due: list[int]) -> Any:
        """Their weights, their gradients, and what is remembered of them."""
        gradients = [g._data for i in due if (g := self.params[i].grad) is not None]
        memory = [[several[i] for i in due] for several in self.memory.values()]
        return [[self.params[i]._data for i in due], gradients, *memory]

    def state_dict(self) -> dict[str, Array]:
        """A copy of what is remembered of each parameter; the learning rate is saved with the
        schedule."""
        return {
            f"{name}.{i}": m.copy()
            for name, arrays in self.memory.items()
            for i, m in enumerate(arrays)
        }

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        """Restore what `state_dict` returned, for the same parameters in the same order.

        In states saved by tinyprop 0.1, what SGD and RMSProp remember is called "memory".
        """
        if len(self.remembers) == 1 and "memory.0" in state:
            state = {
                name.replace("memory.", f"{self.remembers[0]}."): m for name, m in state.items()
            }
        own = {
            f"{name}.{i}": m for name, arrays in self.memory.items() for i, m in enumerate(arrays)
        }
        if {name: m.shape for name, m in state.items()} != {
            name: m.shape for name, m in own.items()
        }:
            rule = (
                f"a state of {type(self).__name__} holds {' and '.join(self.remembers)} for each "
                "of "
            )
            rule += f"{len(self.params)} parameters, of its shape"
            hint = "make the optimizer with the same parameters in the same order"
            raise StateError("the state of another optimizer", rule, hint)
        for name, m in own.items():
            m[...] = to_backend(state[name], backend_of(m))


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
        self.momentum, self.weight_decay = momentum, weight_decay

    def update(self, due: list[int]) -> None:
        w, g, velocity = self.arrays(due)
        sgd(w, g, velocity, self.lr, self.momentum, self.weight_decay)


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
        self.alpha, self.eps, self.weight_decay = alpha, eps, weight_decay

    def update(self, due: list[int]) -> None:
        w, g, square = self.arrays(due)
        rmsprop(w, g, square, self.lr, self.alpha, self.eps, self.weight_decay)


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
        if not (len(betas) == 2 and all(0 <= beta < 1 for beta in betas)):
            raise ValueError(
                explain(f"betas={betas}", "two numbers from 0 to less than 1", "betas=(0.9, 0.999)")
            )
        self.betas, self.eps, self.weight_decay = betas, eps, weight_decay
        self.steps = [0] * len(self.params)  # how often each parameter was updated

    def update(self, due: list[int]) -> None:
        for i in due:
            self.steps[i] += 1
        # several only if some parameters had no gradient at times
        for step in sorted({self.steps[i] for i in due}):
            same = [i for i in due if self.steps[i] == step]
            w, g, mean, square = self.arrays(same)
            adam(w, g, mean, square, self.lr, *self.betas, self.eps, self.weight_decay, step)

    def state_dict(self) -> dict[str, Array]:
        return super().state_dict() | {"steps": host_array(self.steps)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        steps: HostArray = to_numpy(state["steps"]) if "steps" in state else host_array([])
        super().load_state_dict({name: m for name, m in state.items() if name != "steps"})
        if steps.shape != (len(self.params),):
            raise StateError(
                "a state without the step counts of Adam",
                "it has one per parameter",
                "save it again",
            )
        self.steps = [int(step) for step in steps]
