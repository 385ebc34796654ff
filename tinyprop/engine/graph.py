"""The graph: ops, the backward pass, and what is built on it (gradients, Jacobians, Hessians)."""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from .arrays import Array, DType, array_module, as_array, backend_of, common_backend, fit_together, is_array
from .errors import GradientError, ShapeError, explain
from .guard import Uses, freeze, is_frozen, release
from .overrides import run, table, try_overrides
from .tensor import Operand, Tensor

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

Node: TypeAlias = Union["Op", Tensor]  # an op stands for its result; a tensor in the graph is a leaf
Gradient: TypeAlias = Tensor | Callable[[], Tensor] | None

OUT = -1

_recording = ContextVar("recording", default=True)


@contextmanager
def recording(on: bool) -> Iterator[None]:
    """Record a graph inside the block, or do not."""
    before = _recording.set(on)
    try:
        yield
    finally:
        _recording.reset(before)


def recording_now() -> bool:
    """Whether a graph is being recorded: also in a backward pass with create_graph=True."""
    return _recording.get()


def no_grad() -> "_GeneratorContextManager[None]":
    """Compute without recording a graph: `with tp.no_grad():`, or `@tp.no_grad()` before a function.

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
    `backward` names what it needs: inputs by their names in `forward` (`*xs` gives a tuple), and `out`, the result; only
    these are saved. An expensive gradient is returned as a function, which is called only if that gradient is wanted.
    The engine undoes broadcasting and casts; settings that have no gradient are attributes of the op.

    >>> class Cube(tp.Op):
    ...     def forward(self, x):
    ...         return x**3
    ...     def backward(self, g, x):
    ...         return 3 * x**2 * g
    >>> tp.check_gradients(lambda x: Cube()(x), tp.tensor([1.0, 2.0]))
    """

    floating = False  # whether integers and bools are turned into floats first
    hint: str | None = None  # what to try when forward refuses the shapes; without one, errors pass as they are
    _needs: tuple[int, ...] = ()  # what backward needs: numbers of inputs, or OUT
    _variadic: int | None = None  # the number of the input `*xs`, if forward has one

    recorded = False
    parents: tuple[Node | None, ...] | None  # where the gradients go; None once the graph is freed
    saved: Sequence[Any] = ()
    held: Sequence[Uses | None] = ()  # for each saved array, its uses (guard.py)
    shape: tuple[int, ...]
    dtype: DType

    def __init_subclass__(cls) -> None:
        parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
        inputs = [p.name for p in parameters]
        needs = list(inspect.signature(cls.backward).parameters)[2:] if cls.backward is not Op.backward else []
        if unknown := set(needs) - {*inputs, "out"}:
            raise TypeError(
                explain(
                    f"{cls.__name__}.backward with a parameter {unknown.pop()!r}",
                    f"after the gradient come inputs of forward ({', '.join(inputs)}) or out",
                    "the name that forward gives it; save anything else as an attribute",
                )
            )
        cls._needs = tuple(OUT if name == "out" else inputs.index(name) for name in needs)
        cls._variadic = next((i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), None)

    def forward(self, *args: Any, **kwargs: Any) -> Array:
        raise NotImplementedError(f"{type(self).__name__} has no forward rule")

    def backward(self, *args: Any, **kwargs: Any) -> Any:
        raise GradientError(
            f"the gradient of {type(self).__name__}",
            "an op without a backward rule has none; the engine never substitutes zeros",
            "give the class a backward method, or detach() its inputs",
        )

    @cached_property
    def cache(self) -> dict[str, Any]:
        """What an override wants to keep from forward for backward."""
        return {}

    def __call__(self, *inputs: Operand) -> Tensor:
        if self.recorded:  # an op is one node: applied again, it is another one
            again = object.__new__(type(self))
            engine = ("recorded", "parents", "saved", "held", "cache")
            again.__dict__.update((k, v) for k, v in vars(self).items() if k not in engine)
            return again(*inputs)
        arrays: list[Any] = []
        parents: list[Node | None] = []
        wanted = False
        for x in inputs:
            node = None
            if isinstance(x, Tensor):
                if x.requires_grad:
                    node, wanted = x if x.node is None else x.node, True
                x = x._data
            arrays.append(x)
            parents.append(node)
        backend = common_backend(arrays)
        if backend is None:
            arrays, backend = fit_together(type(self).__name__, arrays, self.floating)
        self.recorded = wanted and _recording.get()
        rule = type(self).forward
        try:
            out = run(rule, backend, self, *arrays) if rule in table[backend] else rule(self, *arrays)
        except (ValueError, IndexError) as error:
            shapes = ", ".join(str(a.shape) if is_array(a) else repr(a) for a in arrays)
            if self.hint is None or isinstance(error, ShapeError):
                raise
            raise ShapeError(f"{type(self).__name__}({shapes})", str(error), self.hint) from None
        out = as_array(out)
        if not is_array(out):
            got = f"{type(self).__name__}.forward returned a {type(out).__name__}"
            raise TypeError(explain(got, "forward takes arrays and returns an array", "compute with arrays in forward"))
        result = Tensor(out, self.recorded, self if self.recorded else None)
        if out.base is not None or out is arrays[0]:
            _share_memory(result, inputs)
        if self.recorded:
            self.parents, self.shape, self.dtype = tuple(parents), out.shape, out.dtype
            if self._needs:
                self._save(inputs, arrays, result)
        return result

    def _save(self, inputs: Sequence[Operand], arrays: Sequence[Any], result: Tensor) -> None:
        """Save what backward needs, guarded against edits."""
        saved, held = [], []
        for i in self._positions():
            owner, array = (result, result._data) if i == OUT else (inputs[i], arrays[i])
            uses: Uses | None = None
            if isinstance(owner, Tensor):
                if owner._data is array:  # not if it was cast, which made a copy
                    uses = owner.uses
                    uses.append(None)
                    if owner.exposed:
                        array = freeze(array, uses)
            elif owner is array and is_array(array):  # an array that the user has, too
                uses = [None]
                array = freeze(array, uses)
            saved.append(array)
            held.append(uses)
        self.saved, self.held = saved, held

    def _positions(self) -> Sequence[int]:
        """The numbers of the inputs that are saved, with `*xs` spelt out."""
        if self._variadic is None:
            return self._needs
        every = range(self._variadic, len(self.parents or ()))
        return [j for i in self._needs for j in (every if i == self._variadic else (i,))]

    def gradients(self, g: Tensor) -> Sequence[Gradient]:
        """The gradients of the inputs: by an override, unless they are to have gradients, or by the backward rule."""
        rule, result = type(self).backward, NotImplemented
        if not _recording.get() and rule in table[backend_of(g._data)]:
            result = try_overrides(rule, backend_of(g._data), self, g._data, *self.saved)
        if result is NotImplemented:
            result = self.backward(g, *self._saved_tensors())
            result = result if isinstance(result, tuple) else (result,)
        else:
            result = [_lifted(r) for r in (result if isinstance(result, tuple) else (result,))]
        count = len(self.parents or ())
        if len(result) != count:
            raise GradientError(
                f"{len(result)} gradients from {type(self).__name__}.backward for {count} inputs",
                "it returns one gradient for each input of forward, or None",
                "return a tuple in the order of forward's parameters",
            )
        return result

    def _saved_tensors(self) -> list[Any]:
        """What was saved, as tensors that lead on into the graph; numbers as they are."""
        tensors: list[Any] = []
        for x, uses, i in zip(self.saved, self.held, self._positions(), strict=True):
            if is_array(x):
                node = self if i == OUT else parents_of(self)[i]
                x = Tensor(x, node is not None, node)
                if uses is not None:
                    x.uses, x.exposed = uses, is_frozen(uses)
            tensors.append(x)
        if self._variadic is None or self._variadic not in self._needs:
            return tensors
        at, rest = self._needs.index(self._variadic), len(tensors) - len(self._needs) + 1
        return [*tensors[:at], tuple(tensors[at : at + rest]), *tensors[at + rest :]]

    def free(self) -> None:
        """Drop what backward needs; nothing can go back through this op any more."""
        self.parents, self.saved = None, ()
        held, self.held = self.held, ()
        release(held)
        self.__dict__.pop("cache", None)

    def __del__(self) -> None:
        if self.held:
            release(self.held)


def _share_memory(result: Tensor, inputs: Sequence[Operand]) -> None:
    """If the result is a view of an input, let both share their guard."""
    out = result._data
    for x in inputs:
        array = x._data if isinstance(x, Tensor) else x
        if is_array(array) and (out is array or out.base is array or (out.base is not None and out.base is array.base)):
            result.exposed = True
            if isinstance(x, Tensor):
                result.share(x)


def _lifted(gradient: Any) -> Gradient:
    """What an override returns, an array or a function that returns one, as a tensor or a function that returns one."""
    if gradient is None:
        return None
    return (lambda: Tensor(gradient())) if callable(gradient) else Tensor(gradient)


def unary(op: type[Op]) -> Callable[[Operand], Tensor]:
    """An op of one input as a function."""
    return _named(lambda x: op()(x), op)


def binary(op: type[Op]) -> Callable[[Operand, Operand], Tensor]:
    """An op of two inputs as a function."""
    return _named(lambda x, y: op()(x, y), op)


def _named(function: Any, op: type[Op]) -> Any:
    function.__name__ = function.__qualname__ = op.__name__.lower()
    function.__doc__, function.__module__ = op.__doc__, op.__module__
    return function


def node_of(x: Tensor) -> Node:
    return x if x.node is None else x.node


def inputs_first(root: Node) -> list[Node]:
    """Every node below the root in topological order, each once, without recursion."""
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
    """The backward pass: gradients of <seed, output> with respect to the targets, or to all leaves.

    Only ops between the output and a target take part, and only these are freed.
    """
    order = inputs_first(node_of(output))
    wanted: set[Node] = set(order) if targets is None else set(targets)  # nodes that are, or lead to, a target
    through: set[Node] = set()  # ops with such a node among their inputs
    for node in order:
        if isinstance(node, Op) and (targets is None or any(parent in wanted for parent in parents_of(node))):
            wanted.add(node)
            through.add(node)
    gradients: dict[Node, Tensor] = {order[-1]: seed}
    found: dict[Node, Tensor] = {}
    with recording(create_graph):
        while order:
            node = order.pop()
            g = gradients.pop(node, None)
            if g is not None and (isinstance(node, Tensor) if targets is None else node in targets):
                found[node] = g
            if isinstance(node, Tensor) or node not in through:
                continue
            if g is not None:
                for parent, gradient in zip(parents_of(node), node.gradients(g), strict=True):
                    if parent is not None and parent in wanted:
                        part = _fitted(gradient, node, parent)
                        gradients[parent] = gradients[parent] + part if parent in gradients else part
            if not (retain_graph or create_graph):
                node.free()
    return found


def _fitted(gradient: Gradient, op: Op, parent: Any) -> Tensor:
    """The gradient that a rule gives, with broadcasting undone and in the dtype of the input it belongs to."""
    g = gradient() if callable(gradient) else gradient
    if not isinstance(g, Tensor):
        got = "no gradient" if g is None else f"a {type(g).__name__}"
        raise GradientError(
            f"{got} from {type(op).__name__}.backward for an input of shape {parent.shape}",
            "an input that requires a gradient gets a tensor or an error; the engine never substitutes zeros",
            "detach() that input" if g is None else "write backward with differentiable functions of tensors",
        )
    shape = parent.shape
    if g._data.shape != shape:
        added = g.ndim - len(shape)
        if added < 0 or any(n not in (1, m) for n, m in zip(shape, g.shape[added:], strict=True)):
            raise GradientError(
                f"a gradient of shape {g.shape} from {type(op).__name__}.backward for an input of shape {shape}",
                "it has the shape of that input, or one that the input broadcasts to",
                "check the order of the gradients, and transpositions",
            )
        spread = [i + added for i, n in enumerate(shape) if n == 1 and g.shape[i + added] != 1]
        g = g.sum(axis=(*range(added), *spread)).reshape(shape)
    return g if g._data.dtype == parent.dtype else g.astype(parent.dtype)


def seed_of(output: Tensor, grad: Tensor | Array | None) -> Tensor:
    """The gradient to start from, checked."""
    if not output.requires_grad:
        raise GradientError(
            f"a gradient of a tensor of shape {output.shape} that does not require one",
            "some input must have requires_grad=True, and no_grad() must not be active",
            "tp.tensor(..., requires_grad=True)",
        )
    xp = array_module(output._data)
    if grad is None:
        if output.size != 1:
            raise GradientError(
                f"backward() of a tensor of shape {output.shape}",
                "without an argument it needs a scalar",
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
    return seed if seed.dtype == output.dtype else seed.astype(output.dtype)


def backward(
    self: Tensor, grad: Tensor | Array | None = None, create_graph: bool = False, retain_graph: bool = False
) -> None:
    """Add the gradient of this tensor to `.grad` of every leaf that requires one.

    `grad` is the gradient with respect to this tensor itself, needed unless it has a single element. `create_graph` makes
    the gradients differentiable; `retain_graph` allows a second backward pass.

    >>> x = tp.tensor([1.0, 2.0], requires_grad=True)
    >>> (x * x).backward(tp.tensor([1.0, 10.0]))
    >>> x.grad
    tensor([ 2., 40.])
    """
    seed = seed_of(self, grad)
    handed_out = {id(_memory(seed))}
    for leaf, g in pull_back(self, seed, None, create_graph, retain_graph).items():
        assert isinstance(leaf, Tensor)
        if leaf.grad is not None:
            g = leaf.grad + g
        elif id(_memory(g)) in handed_out or 0 in g._data.strides:  # a leaf's gradient may be edited: no sharing
            g = g + 0.0 if g.requires_grad else Tensor(g._data.copy())
        handed_out.add(id(_memory(g)))
        leaf.grad = g


Tensor.backward = backward


def _memory(t: Tensor) -> Array:
    return t._data if t._data.base is None else t._data.base


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
    found = pull_back(output, seed_of(output, grad_output), set(nodes), create_graph, retain_graph)
    for x, node in zip(inputs, nodes, strict=True):
        if node not in found and not allow_unused:
            raise GradientError(
                f"the gradient with respect to a tensor of shape {x.shape}",
                "the output must depend on it, and it must require a gradient",
                "leave it out, or tp.tensor(..., requires_grad=True) before computing the output",
            )
    return tuple(found.get(node) for node in nodes)
