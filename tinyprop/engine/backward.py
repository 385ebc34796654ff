"""The backward pass (reverse mode), and the gradients that are made of it."""

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
    seen, stack, ops, leaves = {root}, [root], [], []
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
    ops, _ = inputs_first(root)
    wanted: set[Node] = set(targets or ())  # the targets, and the ops that lead to one
    through = set(ops) if targets is None else set()  # the ops that pass their gradient on
    for op in ops if targets is not None else ():
        if not wanted.isdisjoint(op.parents or ()):
            wanted.add(op)
            through.add(op)
    gradients: dict[Node, Tensor] = {root: seed}
    found: dict[Node, Tensor] = {}
    with recording(create_graph):
        while ops:
            op = ops.pop()
            g = gradients.pop(op, None)
            if g is not None and targets is not None and op in targets:
                found[op] = g
            if g is None or op not in through:
                continue
            for parent, gradient in zip(op.parents or (), op.gradients(g), strict=True):
                if parent is not None and (targets is None or parent in wanted):
                    part, before = _fitted(gradient, op, parent), gradients.get(parent)
                    if before is not None:
                        part = (
                            before + part
                            if create_graph
                            else Tensor(as_array(before._data + part._data))
                        )
                    gradients[parent] = part
            if not (retain_graph or create_graph):
                op.free()
    return gradients | found


def _fitted(gradient: Gradient, op: Op, parent: Any) -> Tensor:
    """The gradient that a rule gives, with broadcasting undone and in the dtype of the input it
    belongs to."""
    g = gradient() if callable(gradient) else gradient
    if not isinstance(g, Tensor):
        got = "no gradient" if g is None else f"a {type(g).__name__}"
        raise GradientError(
            f"{got} from {type(op).__name__}.backward for an input of shape {parent.shape}",
            (
                "an input that requires a gradient gets a tensor or an error; the engine never "
                "substitutes zeros"
            ),
            "detach() that input"
            if g is None
            else "write backward with differentiable functions of tensors",
        )
    shape = parent.shape
    if g._data.shape != shape:
        added = g.ndim - len(shape)
        if added < 0 or any(n not in (1, m) for n, m in zip(shape, g.shape[added:], strict=True)):
            raise GradientError(
                (
                    f"a gradient of shape {g.shape} from {type(op).__name__}.backward for an input "
                    f"of shape {shape}"
                ),
                "it has the shape of that input, or one that the input broadcasts to",
                "check the order of the gradients, and transpositions",
            )
        spread = [i + added for i, n in enumerate(shape) if n == 1 and g.shape[i + added] != 1]
        g = g.sum(axis=(*range(added), *spread)).reshape(shape)
    if g._data.dtype != parent.dtype:
        check_elements(parent.dtype, requires_grad=True)
        g = g.astype(parent.dtype)
    return g


def seed_of(output: Tensor, grad: Tensor | Array | None) -> Tensor:
    """The gradient to start from, checked."""
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
    # a copy: it may be edited later
    seed = grad if isinstance(grad, Tensor) else Tensor(xp.array(grad, output.dtype))
    if seed.shape != output.shape:
        raise ShapeError(
            f"a gradient of shape {seed.shape} for a tensor of shape {output.shape}",
            "they must be equal",
            f"reshape or broadcast it to {output.shape}",
        )
    return seed if seed.dtype == output.dtype else seed.astype(output.dtype)


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

    def memory(t: Tensor) -> int:
        return id(t._data if t._data.base is None else t._data.base)

    seed = seed_of(self, grad)
    handed_out = {memory(seed)}
    for leaf, g in pull_back(self, seed, None, create_graph, retain_graph).items():
        assert isinstance(leaf, Tensor)
        if leaf.grad is not None:
            g = leaf.grad + g
        # a leaf's gradient may be edited: no sharing
        elif memory(g) in handed_out or 0 in g._data.strides:
            g = g + 0.0 if g.requires_grad else Tensor(g._data.copy())
        handed_out.add(memory(g))
        leaf.grad = g


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
    found = pull_back(output, seed_of(output, grad_output), set(nodes), create_graph, retain_graph)
    for x, node in zip(inputs, nodes, strict=True):
        if node not in found and not allow_unused:
            raise GradientError(
                f"the gradient with respect to a tensor of shape {x.shape}",
                "the output must depend on it, and it must require a gradient",
                "leave it out, or tp.tensor(..., requires_grad=True) before computing the output",
            )
    return tuple(found.get(node) for node in nodes)
