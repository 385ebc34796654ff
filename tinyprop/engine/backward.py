"""The backward pass (reverse mode): `Tensor.backward` and `tp.grad`."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from .arrays import Array, array_module, as_array
from .errors import GradientError, ShapeError
from .graph import Gradient, Node, Op, recording
from .tensor import Tensor, check_elements


def node_of(x: Tensor) -> Node:
    return x if x.node is None else x.node


def inputs_first(root: Node) -> tuple[list[Op], list[Tensor]]:
    """All ops below the root in topological order (the order in which they were recorded), and the
    leaves."""
    ops: list[Op] = []
    leaves: list[Tensor] = []
    seen = {root}
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, Tensor):
            leaves.append(node)
            continue
        ops.append(node)
        for parent in parents_of(node):
            if parent is not None and parent not in seen:
                seen.add(parent)
                stack.append(parent)
    ops.sort(key=attrgetter("number"))
    return ops, leaves


def parents_of(op: Op) -> tuple[Node | None, ...]:
    if op.parents is None:
        raise GradientError(
            f"a gradient through a graph that was freed (at {type(op).__name__})",
            "a graph is freed by its first backward pass",
            "backward(retain_graph=True) the first time, or compute the result again",
        )
    return op.parents


def pull_back(
    output: Tensor, seed: Tensor, targets: set[Node] | None, create_graph: bool, retain_graph: bool
) -> dict[Node, Tensor]:
    """The backward pass: gradients of <seed, output> with respect to the targets, or to all leaves.

    Only ops between the output and a target take part, and only these are freed.
    """
    root = node_of(output)
    ops, leaves = inputs_first(root)
    if targets is None:
        targets = set(leaves)
    needed = _ops_above(targets, ops)
    gradients: dict[Node, Tensor] = {root: seed}
    with recording(create_graph):
        for op in reversed(ops):
            if op not in needed:
                continue
            g = gradients[op] if op in targets else gradients.pop(op)
            for parent, gradient in zip(op.parents or (), op.gradients(g), strict=True):
                if parent not in needed and parent not in targets:
                    continue
                part = _fit_to_input(gradient, op, parent)
                before = gradients.get(parent)
                if before is None:
                    gradients[parent] = part
                elif create_graph:
                    gradients[parent] = before + part
                else:
                    gradients[parent] = Tensor(as_array(before._data + part._data))
            if not (retain_graph or create_graph):
                op.free()
    return gradients


def _ops_above(targets: set[Node], ops: list[Op]) -> set[Op]:
    """The ops, given in topological order, whose results depend on a target."""
    above: set[Op] = set()
    for op in ops:
        parents = op.parents or ()
        is_above = not targets.isdisjoint(parents) or not above.isdisjoint(parents)
        if is_above:
            above.add(op)
    return above


def _fit_to_input(gradient: Gradient, op: Op, parent: Node) -> Tensor:
    """The gradient that a rule gives, with the shape and the dtype of the input it belongs to."""
    g = gradient() if callable(gradient) else gradient
    if not isinstance(g, Tensor):
        raise _not_a_tensor(g, op, parent)
    if g._data.shape != parent.shape:
        g = _undo_broadcasting(g, op, parent.shape)
    if g._data.dtype != parent.dtype:
        check_elements(parent.dtype, requires_grad=True)
        g = g.astype(parent.dtype)
    return g


def _not_a_tensor(value: Any, op: Op, parent: Node) -> GradientError:
    if value is None:
        got = "no gradient"
        hint = "detach() that input"
    else:
        got = f"a {type(value).__name__}"
        hint = "write backward with differentiable functions of tensors"
    return GradientError(
        f"{got} from {type(op).__name__}.backward for an input of shape {parent.shape}",
        "an input that requires a gradient gets a tensor or an error; the engine never "
        "substitutes zeros",
        hint,
    )


def _undo_broadcasting(g: Tensor, op: Op, shape: tuple[int, ...]) -> Tensor:
    """The sum over the copies that broadcasting made of an input of this shape."""
    if not _broadcasts_to(shape, g.shape):
        raise GradientError(
            f"a gradient of shape {g.shape} from {type(op).__name__}.backward for an input of "
            f"shape {shape}",
            "it has the shape of that input, or one that the input broadcasts to",
            "check the order of the gradients, and transpositions",
        )
    added = g.ndim - len(shape)
    axes = list(range(added))  # broadcasting added them in front
    for axis, n in enumerate(shape, start=added):
        if n == 1 and g.shape[axis] != 1:
            axes.append(axis)
    return g.sum(axis=tuple(axes)).reshape(shape)


def _broadcasts_to(shape: tuple[int, ...], larger: tuple[int, ...]) -> bool:
    added = len(larger) - len(shape)
    if added < 0:
        return False
    return all(n in (1, m) for n, m in zip(shape, larger[added:], strict=True))


def initial_gradient(output: Tensor, grad: Tensor | Array | None) -> Tensor:
    """The gradient with respect to the output itself, from which the backward pass starts: the
    given one, checked, or 1 for a scalar."""
    if not output.requires_grad:
        raise GradientError(
            f"a gradient of a tensor of shape {output.shape} that does not require one",
            "some input must have requires_grad=True, and no_grad() must not be active",
            "tp.tensor(..., requires_grad=True)",
        )
    check_elements(output.dtype, requires_grad=True)
    xp = array_module(output._data)
    if grad is None:
        if output.size != 1:
            raise GradientError(
                f"backward() of a tensor of shape {output.shape}",
                "without an argument it needs a scalar",
                "backward(grad) with a grad of that shape, or reduce with sum() or mean() first",
            )
        return Tensor(xp.ones(output.shape, output.dtype))
    if not isinstance(grad, Tensor):
        grad = Tensor(xp.array(grad, output.dtype))  # a copy: the user may edit the array later
    if grad.shape != output.shape:
        raise ShapeError(
            f"a gradient of shape {grad.shape} for a tensor of shape {output.shape}",
            "they must be equal",
            f"reshape or broadcast it to {output.shape}",
        )
    if grad.dtype != output.dtype:
        return grad.astype(output.dtype)
    return grad


def backward(
    self: Tensor,
    grad: Tensor | Array | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
) -> None:
    """Add the gradient of this tensor to `.grad` of every leaf that requires one.

    `grad` is the gradient with respect to this tensor itself, needed unless it has a single
    element. `create_graph` makes the gradients differentiable; `retain_graph` allows a second
    backward pass.

    >>> x = tp.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).backward(tp.tensor([1.0, 10.0]))
    >>> x.grad
    tensor([ 2., 40.])
    """
    seed = initial_gradient(self, grad)
    memory_in_use = {_memory_of(seed)}
    for leaf, g in pull_back(self, seed, None, create_graph, retain_graph).items():
        assert isinstance(leaf, Tensor)
        if leaf.grad is not None:
            g = leaf.grad + g
        else:
            # the user may edit a leaf's gradient, so it needs memory of its own
            is_shared = _memory_of(g) in memory_in_use
            is_broadcast = 0 in g._data.strides
            if is_shared or is_broadcast:
                g = g + 0.0 if g.requires_grad else Tensor(g._data.copy())
        memory_in_use.add(_memory_of(g))
        leaf.grad = g


def _memory_of(t: Tensor) -> int:
    """A number for the memory of this tensor, the same for all views of it."""
    return id(t._data if t._data.base is None else t._data.base)


Tensor.backward = backward


def grad(
    output: Tensor,
    inputs: Tensor | Sequence[Tensor],
    grad_output: Tensor | Array | None = None,
    create_graph: bool = False,
    retain_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Any, ...]:
    """The gradients of `output` with respect to the inputs, as tensors, leaving every `.grad`
    alone.

    An input that the output does not depend on is an error, or with `allow_unused` has None for a
    gradient.

    >>> x = tp.tensor(3.0, requires_grad=True)
    >>> (slope,) = tp.grad(x**3, [x], create_graph=True)
    >>> slope, tp.grad(slope, [x])[0]
    (tensor(27., requires_grad=True), tensor(18.))
    """
    inputs = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    nodes = [node_of(x) for x in inputs]
    seed = initial_gradient(output, grad_output)
    gradients = pull_back(output, seed, set(nodes), create_graph, retain_graph)
    for x, node in zip(inputs, nodes, strict=True):
        if node not in gradients and not allow_unused:
            raise GradientError(
                f"the gradient with respect to a tensor of shape {x.shape}",
                "the output must depend on it, and it must require a gradient",
                "leave it out, or tp.tensor(..., requires_grad=True) before computing the output",
            )
    return tuple(gradients.get(node) for node in nodes)
