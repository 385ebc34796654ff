"""The graph: ops, the backward pass, and what is made of it (gradients, Jacobians, and their check)."""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from .arrays import Array, DType, Kept, alike, array_module, as_array, fit_together, is_array
from .errors import GradientError, ShapeError, explain
from .tensor import Operand, Tensor, announce

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

Node: TypeAlias = Union["Op", Tensor]  # an op stands for its result; a tensor in the graph is a leaf
Gradient: TypeAlias = Tensor | Callable[[], Tensor] | None

OUT = -1

_recording = ContextVar("recording", default=True)


@contextmanager
def recording(on: bool) -> Iterator[None]:
    """Build a graph inside the block, or do not."""
    before = _recording.set(on)
    try:
        yield
    finally:
        _recording.reset(before)


def is_recording() -> bool:
    """Whether a graph is being built: also in a backward pass, if its gradients are to have gradients."""
    return _recording.get()


def no_grad() -> "_GeneratorContextManager[None]":
    """Compute without building a graph: `with tp.no_grad():`, or `@tp.no_grad()` before a function.

    >>> x = tp.tensor(1.0, requires_grad=True)
    >>> with tp.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    return recording(False)


class Op:
    """One differentiable function, applied once: `Multiply()(x, y)`. A node of the graph.

    A subclass has a `forward` from arrays to an array and a `backward` from the gradient of the result to the
    gradients of the inputs, as tensors, written with differentiable functions, so that gradients have gradients.
    `backward` names what it needs: inputs by their names in `forward`, and `out`, the result; only these are kept.
    A gradient that costs something is returned as a function, which is only called if somebody wants it. The
    engine undoes broadcasting and casts; parameters that have no gradient are attributes of the op.

    >>> class Cube(tp.Op):
    ...     def forward(self, x):
    ...         return x**3
    ...     def backward(self, g, x):
    ...         return 3 * x**2 * g
    >>> tp.check_gradients(lambda x: Cube()(x), tp.tensor([1.0, 2.0]))
    """

    hint = "check the shapes of the inputs"
    _keeps: tuple[int, ...] = ()  # what backward needs: numbers of inputs, or OUT

    recorded = False
    parents: tuple[Node | None, ...] | None  # where the gradients go; None once the graph is freed
    kept: tuple[Any, ...] = ()
    shape: tuple[int, ...]
    dtype: DType

    def __init_subclass__(cls) -> None:
        inputs = list(inspect.signature(cls.forward).parameters)[1:]
        needs = list(inspect.signature(cls.backward).parameters)[2:] if cls.backward is not Op.backward else []
        if unknown := set(needs) - {*inputs, "out"}:
            raise TypeError(
                explain(
                    f"{cls.__name__}.backward with a parameter {unknown.pop()!r}",
                    f"after the gradient come inputs of forward ({', '.join(inputs)}) or out",
                    "the name that forward gives it; keep anything else as an attribute",
                )
            )
        cls._keeps = tuple(OUT if name == "out" else inputs.index(name) for name in needs)

    def forward(self, *args: Any, **kwargs: Any) -> Array:
        raise NotImplementedError(f"{type(self).__name__} has no forward rule")

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        raise GradientError(
            f"the gradient of {type(self).__name__}",
            "an op without a backward rule has none, and passes no zeros on silently",
            "give the class a backward method, or detach() its inputs",
        )

    def __call__(self, *inputs: Operand) -> Tensor:
        if self.recorded:  # an op is one node: applied again, it is another one
            again = copy(self)
            again.recorded = False
            return again(*inputs)
        arrays: list[Any] = []
        parents: list[Node | None] = []
        wanted = False
        for x in inputs:
            node = None
            if isinstance(x, Tensor):
                if x.requires_grad:
                    node, wanted = node_of(x), True
                x = x._data
            arrays.append(x)
            parents.append(node)
        if not alike(arrays):
            arrays = fit_together(type(self).__name__, arrays)
        try:
            out = as_array(self.forward(*arrays))
        except ShapeError:
            raise
        except (ValueError, IndexError) as error:
            got = ", ".join(str(a.shape) if is_array(a) else repr(a) for a in arrays)
            raise ShapeError(f"{type(self).__name__}({got})", str(error), self.hint) from None
        if not (wanted and is_recording()):
            return Tensor(out)
        self.recorded, self.parents = True, tuple(parents)
        self.shape, self.dtype = out.shape, out.dtype
        if self._keeps:
            needed = [out if i == OUT else arrays[i] for i in self._keeps]
            self.kept = tuple([Kept(x) if is_array(x) else x for x in needed])
        return Tensor(out, True, self)

    def gradients(self, g: Tensor) -> Sequence[Gradient]:
        """Call the backward rule with what was kept, as tensors that lead on into the graph."""
        needed = []
        for x, i in zip(self.kept, self._keeps, strict=True):
            node = self if i == OUT else parents_of(self)[i]
            needed.append(Tensor(x.array, node is not None, node) if isinstance(x, Kept) else x)
        result = self.backward(g, *needed)
        return result if isinstance(result, tuple) else (result,)

    def free(self) -> None:
        self.parents = None
        self.kept = ()


def unary(op: type[Op]) -> Callable[[Operand], Tensor]:
    """An op of one input as a function."""
    return wraps(op, updated=())(lambda x: op()(x))


def binary(op: type[Op]) -> Callable[[Operand, Operand], Tensor]:
    """An op of two inputs as a function."""
    return wraps(op, updated=())(lambda x, y: op()(x, y))


def node_of(x: Tensor) -> Node:
    return x if x.node is None else x.node


def inputs_first(root: Node) -> list[Node]:
    """Every node below the root, inputs before what is computed from them, each once, without recursion."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, inputs_done = stack.pop()
        if inputs_done:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            for parent in parents_of(node):
                if parent is not None and parent not in seen:
                    stack.append((parent, False))
    return order


def parents_of(node: Node) -> tuple[Node | None, ...]:
    if isinstance(node, Tensor):
        return ()
    if node.parents is None:
        raise GradientError(
            f"a gradient through a graph that was freed (at {type(node).__name__})",
            "a graph is freed by its first backward pass",
            "backward(retain_graph=True) the first time, or compute the result again",
        )
    return node.parents


def pull_back(
    output: Tensor, seed: Tensor, targets: set[Node] | None, create_graph: bool, retain_graph: bool
) -> dict[Node, Tensor]:
    """The one backward pass: gradients of <seed, output> with respect to the targets, or to all leaves."""
    order = inputs_first(node_of(output))
    on_the_way: set[Any] = set(order) if targets is None else set(targets)
    if targets is not None:
        for node in order:
            if any(parent in on_the_way for parent in parents_of(node)):
                on_the_way.add(node)
    gradients: dict[Node, Tensor] = {order[-1]: seed}
    found: dict[Node, Tensor] = {}
    with recording(create_graph):
        while order:
            node = order.pop()
            g = gradients.pop(node, None)
            if g is not None and (isinstance(node, Tensor) if targets is None else node in targets):
                found[node] = g
            if isinstance(node, Tensor):
                continue
            if g is not None and node in on_the_way:
                for parent, rule in zip(parents_of(node), node.gradients(g), strict=True):
                    if parent is not None and parent in on_the_way:
                        part = _fitted(rule, node, parent)
                        gradients[parent] = gradients[parent] + part if parent in gradients else part
            if not (retain_graph or create_graph):
                node.free()
    return found


def _fitted(rule: Gradient, op: Op, parent: Any) -> Tensor:
    """The gradient that a rule gives, with broadcasting undone and in the dtype of the input it belongs to."""
    g = rule() if callable(rule) else rule
    if g is None:
        raise GradientError(
            f"no gradient from {type(op).__name__} for an input of shape {parent.shape}",
            "an input that requires a gradient gets one or an error, never zeros in silence",
            "detach() that input",
        )
    shape = parent.shape
    if g._data.shape != shape:
        added = g.ndim - len(shape)
        spread = [i + added for i, n in enumerate(shape) if n == 1 and g.shape[i + added] != 1]
        g = g.sum(axis=(*range(added), *spread)).reshape(shape)
    return g if g._data.dtype == parent.dtype else g.astype(parent.dtype)


def _seed(output: Tensor, grad: Tensor | Array | None) -> Tensor:
    """The gradient to start from, checked."""
    if not output.requires_grad:
        raise GradientError(
            f"a gradient of a tensor of shape {output.shape} that does not require one",
            "some input must have requires_grad=True, and no_grad() must not be active",
            "tp.tensor(..., requires_grad=True)",
        )
    xp = array_module(output.data)
    if grad is None:
        if output.size != 1:
            raise GradientError(
                f"backward() of a tensor of shape {output.shape}",
                "only a single number has a gradient without further ado",
                "backward(grad) with a grad of that shape, or reduce with sum() or mean() first",
            )
        return Tensor(xp.ones(output.shape, output.dtype))
    seed = grad if isinstance(grad, Tensor) else Tensor(xp.asarray(grad, output.dtype))
    if seed.shape != output.shape:
        raise ShapeError(
            f"a gradient of shape {seed.shape} for a tensor of shape {output.shape}",
            "they must be equal",
            f"reshape or broadcast it to {output.shape}",
        )
    return seed


def backward(output: Tensor, grad: Tensor | Array | None, create_graph: bool, retain_graph: bool) -> None:
    """Add the gradient of `output` to `.grad` of every leaf; see Tensor.backward."""
    seed = _seed(output, grad)
    handed_out = {id(_memory(seed))}
    for leaf, g in pull_back(output, seed, None, create_graph, retain_graph).items():
        assert isinstance(leaf, Tensor)
        if leaf.grad is not None:
            g = leaf.grad + g
        elif id(_memory(g)) in handed_out or 0 in g.data.strides:  # a leaf's gradient may be edited: no sharing
            g = g + 0.0 if g.requires_grad else Tensor(g.data.copy())
        handed_out.add(id(_memory(g)))
        leaf.grad = g


def _memory(t: Tensor) -> Array:
    return t.data if t.data.base is None else t.data.base


def grad(
    output: Tensor,
    inputs: Tensor | Sequence[Tensor],
    grad_output: Tensor | Array | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """The gradients of `output` with respect to the inputs, as tensors, leaving every `.grad` alone.

    An input that the output does not depend on is an error, or with `allow_unused` has None for a gradient.

    >>> x = tp.tensor(3.0, requires_grad=True)
    >>> (slope,) = tp.grad(x**3, [x], create_graph=True)
    >>> slope, tp.grad(slope, [x])[0]
    (tensor(27., requires_grad=True), tensor(18.))
    """
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    nodes = [node_of(x) for x in inputs]
    found = pull_back(output, _seed(output, grad_output), set(nodes), create_graph, retain_graph)
    for x, node in zip(inputs, nodes, strict=True):
        if node not in found and not allow_unused:
            raise GradientError(
                f"the gradient with respect to a tensor of shape {x.shape}",
                "the output must depend on it, and it must require a gradient",
                "leave it out, or tp.tensor(..., requires_grad=True) before computing the output",
            )
    return tuple(found.get(node) for node in nodes)


def jacobian(f: Callable[[Tensor], Tensor], x: Tensor) -> Array:
    """The matrix of all derivatives of f at x, as an array of shape (*f(x).shape, *x.shape).

    >>> tp.jacobian(lambda x: x * x, tp.tensor([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    xp = array_module(x.data)
    x = Tensor(x.data, requires_grad=True)
    with recording(True):
        y = f(x)
    rows = xp.zeros((y.size, *x.shape), x.dtype)
    if y.requires_grad:
        for i in range(y.size):
            seed = xp.zeros(y.size, y.dtype)
            seed[i] = 1
            found = pull_back(y, Tensor(seed.reshape(y.shape)), {x}, create_graph=False, retain_graph=True)
            if x in found:
                rows[i] = found[x].data
    return rows.reshape(y.shape + x.shape)


announce(sys.modules[__name__])
