"""Optimisers, learning-rate schedules, and the unit-length constraint."""

from collections.abc import Iterable, Iterator, Mapping

from .engine.arrays import Array, array_module, is_host_array, to_backend
from .engine.errors import StateError, explain
from .engine.guard import check_editable
from .engine.tensor import Tensor
from .kernels import device
from .nn.module import Module
from .nn.normalization import NormProp

BLOCK = 1 << 15  # elements that are updated together, so that what they need stays in the cache: one pass over memory


class Optimizer:
    """Updates parameters in place from their gradients. `lr` may be changed between steps.

    >>> w = tp.tensor([1.0], requires_grad=True)
    >>> optimizer = tp.optim.SGD([w], lr=0.1)
    >>> (w * w).sum().backward()
    >>> optimizer.zero_grad()
    >>> w.grad is None
    True
    """

    def __init__(self, params: Iterable[Tensor], lr: float, **settings: float):
        self.params = list(params)
        if not self.params:
            raise ValueError(explain("an optimiser without parameters", "it needs at least one", "model.parameters()"))
        for name, value in {"lr": lr, **settings}.items():
            if not value >= 0:
                raise ValueError(explain(f"{name}={value}", "it is a number >= 0", f"{name}=0.0"))
        self.lr = lr
        self.memory = [array_module(p.data).zeros_like(p.data) for p in self.params]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        due = []
        for p, memory in zip(self.params, self.memory, strict=True):
            if p.grad is not None:
                check_editable(p)
                due.append((p.data, p.grad.data, memory))
        self.update_all(due)

    def update_all(self, due: list[tuple[Array, Array, Array]]) -> None:
        """Update each of these parameters, given with its gradient and memory."""
        for arrays in due:
            for w, g, m in blocks(*arrays):
                self.update(w, g, m)

    def update(self, w: Array, g: Array, memory: Array) -> None:
        """Change w and memory, in place, by one step along g."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Array]:
        """A copy of what the optimiser remembers of each parameter; the learning rate is the schedule's business."""
        return {f"memory.{i}": m.copy() for i, m in enumerate(self.memory)}

    def load_state_dict(self, state: Mapping[str, Array]) -> None:
        if {k: v.shape for k, v in state.items()} != {f"memory.{i}": m.shape for i, m in enumerate(self.memory)}:
            raise StateError(
                "the state of another optimiser",
                "it holds one array for each parameter, of its shape",
                "make the optimiser with the same parameters in the same order",
            )
        for i, m in enumerate(self.memory):
            m[...] = to_backend(state[f"memory.{i}"], self.params[i].backend)


def blocks(w: Array, *others: Array) -> Iterator[list[Array]]:
    """Arrays of one shape cut into flat pieces in the order of w's memory; those of w are views of it."""
    order = sorted(range(w.ndim), key=lambda axis: -w.strides[axis])
    arrays = [a.transpose(order) for a in (w, *others)]
    if not arrays[0].flags.c_contiguous:
        yield arrays
        return
    flat = [a.reshape(-1) for a in arrays]
    size = BLOCK if is_host_array(w) else w.size
    for start in range(0, w.size, size):
        yield [a[start : start + size] for a in flat]


def in_one_launch(due: list[tuple[Array, Array, Array]]) -> bool:
    """Whether parameters, given with their gradients and memory, are on a device that can update them all at once."""
    return len({w.dtype for w, _, _ in due}) == 1 and all(device.updates(w, memory) for w, _, memory in due)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum; weight decay is added to the gradient, as in PyTorch.

    >>> w = tp.tensor([1.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> tp.optim.SGD([w], lr=0.1).step()
    >>> w
    tensor([0.8], requires_grad=True)
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.9, weight_decay: float = 0.0):
        super().__init__(params, lr, momentum=momentum, weight_decay=weight_decay)
        self.momentum, self.weight_decay = momentum, weight_decay

    def update_all(self, due: list[tuple[Array, Array, Array]]) -> None:
        if in_one_launch(due):
            device.sgd(due, self.lr, self.momentum, self.weight_decay)
        else:
            super().update_all(due)

    def update(self, w: Array, g: Array, memory: Array) -> None:
        if self.weight_decay:
            g = g + self.weight_decay * w
        if self.momentum:
            memory *= self.momentum
            memory += g
            g = memory
        w -= self.lr * g


class RMSProp(Optimizer):
    """Gradients divided by a running root mean square of themselves: Tieleman and Hinton (2012).

    >>> w = tp.tensor([1.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> tp.optim.RMSProp([w], lr=0.01, alpha=0.0).step()
    >>> round(w.item(), 4)
    0.99
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 0.01,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        super().__init__(params, lr, alpha=alpha, eps=eps, weight_decay=weight_decay)
        self.alpha, self.eps, self.weight_decay = alpha, eps, weight_decay

    def update_all(self, due: list[tuple[Array, Array, Array]]) -> None:
        if in_one_launch(due):
            device.rmsprop(due, self.lr, self.alpha, self.eps, self.weight_decay)
        else:
            super().update_all(due)

    def update(self, w: Array, g: Array, memory: Array) -> None:
        if self.weight_decay:
            g = g + self.weight_decay * w
        memory *= self.alpha
        memory += (1 - self.alpha) * g * g
        w -= self.lr * g / (array_module(w).sqrt(memory) + self.eps)


class HalveEvery:
    """Halve the learning rate after every n epochs.

    >>> optimizer, schedule = tp.optim.SGD([tp.tensor([1.0])], lr=0.4), tp.optim.HalveEvery(2)
    >>> for epoch in range(4):
    ...     schedule.epoch_ended(optimizer, error=0.0)
    >>> optimizer.lr
    0.1
    """

    def __init__(self, n: int):
        if n < 1:
            raise ValueError(explain(f"HalveEvery({n})", "it counts whole epochs, at least 1", "HalveEvery(10)"))
        self.n, self.epochs = n, 0

    def epoch_ended(self, optimizer: Optimizer, error: float) -> None:
        self.epochs += 1
        if self.epochs % self.n == 0:
            optimizer.lr /= 2


class HalveOnPlateau:
    """Halve the learning rate when the training error has not improved for `patience` epochs (section 4.4).

    >>> optimizer, schedule = tp.optim.SGD([tp.tensor([1.0])], lr=0.4), tp.optim.HalveOnPlateau(patience=2)
    >>> for error in (0.5, 0.5, 0.5):
    ...     schedule.epoch_ended(optimizer, error)
    >>> optimizer.lr
    0.2
    """

    def __init__(self, patience: int = 3):
        if patience < 1:
            raise ValueError(
                explain(f"HalveOnPlateau({patience})", "patience is at least 1 epoch", "HalveOnPlateau(3)")
            )
        self.patience, self.best, self.waited = patience, float("inf"), 0

    def epoch_ended(self, optimizer: Optimizer, error: float) -> None:
        self.waited += 1
        if error < self.best:
            self.best, self.waited = error, 0
        elif self.waited >= self.patience:
            optimizer.lr /= 2
            self.waited = 0


def normalize_weights(model: Module) -> None:
    """Scale each weight vector or filter of the NormProp layers to unit length, in place (section 4.4).

    >>> net = tp.nn.Sequential(tp.nn.NormPropLinear(3, 2))
    >>> tp.optim.normalize_weights(net)
    >>> round(float((net[0].weight.data**2).sum()), 5)
    2.0
    """
    weights = []
    for module in model.modules():
        if isinstance(module, NormProp):
            check_editable(module.weight)
            weights.append(module.weight.data)
    if len({w.dtype for w in weights}) == 1 and device.updates(*weights):
        device.unit_rows(weights)
        return
    for w in weights:
        w /= array_module(w).sqrt((w * w).sum(axis=tuple(range(1, w.ndim)), keepdims=True))
