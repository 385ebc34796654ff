"""The graph: an op is a node, which knows its inputs and how to pass a gradient back to them."""

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from .arrays import (
    Array,
    DType,
    as_array,
    backend_of,
    fast_path_backend,
    is_array,
    promote_operands,
)
from .context import context, current
from .errors import GradientError, ShapeError, explain
from .guard import NOTHING, Saved, owner_of
from .overrides import overridden, try_overrides
from .tensor import Operand, Tensor

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

# an op stands for its result; a tensor in the graph is a leaf
Node: TypeAlias = Union["Op", Tensor]
Gradient: TypeAlias = Tensor | Callable[[], Tensor] | None

OUT = -1

_numbers = count()


def recording(on: bool) -> "_GeneratorContextManager[None]":
    """Record a graph inside the block, or do not."""
    return context(recording=on)


def recording_now() -> bool:
    """Whether a graph is being recorded: also in a backward pass with create_graph=True."""
    return current().recording


def no_grad() -> "_GeneratorContextManager[None]":
    """Compute without recording a graph: `with tp.no_grad():`, or `@tp.no_grad()` before a
    function.

    >>> x = tp.tensor(1.0, requires_grad=True)
    >>> with tp.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    return recording(False)


class Op:
    """One differentiable function, applied once: `Multiply()(x, y)`. A node of the graph.

    A subclass has a `forward` from arrays to an array and a `backward` from the gradient of the
    result to the gradients of the inputs, as tensors, written with differentiable functions, so
    that gradients have gradients. `backward` names what it needs: inputs by their names in
    `forward` (`*xs` gives a tuple), and `out`, the result; only these are saved. An expensive
    gradient is returned as a function, called only if that gradient is wanted. The engine undoes
    broadcasting and casts; settings that have no gradient are attributes of the op.

    >>> class Cube(tp.Op):
    ...     def forward(self, x):
    ...         return x**3
    ...     def backward(self, g, x):
    ...         return 3 * x**2 * g
    >>> tp.check_gradients(lambda x: Cube()(x), tp.tensor([1.0, 2.0]))
    """

    floating = False  # whether integers and bools are turned into floats first
    # what to try when forward refuses the shapes; without one, errors pass as they are
    hint: str | None = None
    _needs: tuple[int, ...] = ()  # what backward needs: numbers of inputs, or OUT
    _variadic: int | None = None  # the number of the input `*xs`, if forward has one

    recorded = False
    number: int  # in the order of recording, so that inputs come first
    parents: tuple[Node | None, ...] | None  # where the gradients go; None once the graph is freed
    saved = NOTHING
    shape: tuple[int, ...]
    dtype: DType

    def __init_subclass__(cls) -> None:
        parameters = list(inspect.signature(cls.forward).parameters.values())[1:]
        inputs = [
            p.name for p in parameters if p.default is p.empty and p.kind is not p.KEYWORD_ONLY
        ]
        needs = (
            list(inspect.signature(cls.backward).parameters)[2:]
            if cls.backward is not Op.backward
            else []
        )
        if unknown := set(needs) - {*inputs, "out"}:
            got = f"{cls.__name__}.backward with a parameter {unknown.pop()!r}"
            rule = (
                "after the gradient come inputs of forward that have no default "
                f"({', '.join(inputs)}) or out"
            )
            raise TypeError(
                explain(
                    got, rule, "the name that forward gives it; save anything else as an attribute"
                )
            )
        positions = {p.name: i for i, p in enumerate(parameters)} | {"out": OUT}
        cls._needs = tuple(positions[name] for name in needs)
        cls._variadic = next(
            (i for i, p in enumerate(parameters) if p.kind is p.VAR_POSITIONAL), None
        )

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
            engine = ("recorded", "number", "parents", "saved", "cache")
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
        backend = fast_path_backend(arrays, self.floating)
        if backend is None:
            arrays, backend = promote_operands(type(self).__name__, arrays, self.floating)
        self.recorded = wanted and current().recording
        rule = type(self).forward
        try:
            out = (
                try_overrides(rule, backend, self, *arrays)
                if rule in overridden
                else NotImplemented
            )
            if out is NotImplemented:
                out = rule(self, *arrays)
        except (ValueError, IndexError) as error:
            shapes = ", ".join(str(a.shape) if is_array(a) else repr(a) for a in arrays)
            if self.hint is None or isinstance(error, ShapeError):
                raise
            raise ShapeError(f"{type(self).__name__}({shapes})", str(error), self.hint) from None
        if not is_array(out) and not is_array(out := as_array(out)):
            got = f"{type(self).__name__}.forward returned a {type(out).__name__}"
            raise TypeError(
                explain(
                    got,
                    "forward takes arrays and returns an array",
                    "compute with arrays in forward",
                )
            )
        result = Tensor(out, self.recorded, self if self.recorded else None)
        if out.base is not None or id(out) in map(id, arrays):
            _share_memory(result, inputs)
        if self.recorded:
            self.number, self.parents = next(_numbers), tuple(parents)
            self.shape, self.dtype = out.shape, out.dtype
            if self._needs:
                self.saved = Saved()
                for i in self._positions():
                    if i == OUT:
                        self.saved.add(out, result)
                    else:
                        self.saved.add(arrays[i], inputs[i])
        return result

    def _positions(self) -> Sequence[int]:
        """The numbers of the inputs that are saved, with `*xs` spelt out."""
        if self._variadic is None:
            return self._needs
        every = range(self._variadic, len(self.parents or ()))
        return [j for i in self._needs for j in (every if i == self._variadic else (i,))]

    def gradients(self, g: Tensor) -> Sequence[Gradient]:
        """The gradients of the inputs: by an override, unless they are to have gradients, or by the
        backward rule."""
        rule = type(self).backward
        result: Any = NotImplemented
        if rule in overridden and not current().recording:
            result = try_overrides(rule, backend_of(g._data), self, g._data, *self.saved.arrays)
        if result is NotImplemented:
            result = self.backward(g, *self._saved_tensors()) if self._needs else self.backward(g)
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
        for x, uses, i in zip(self.saved.arrays, self.saved.uses, self._positions(), strict=True):
            if is_array(x):
                node = self if i == OUT else self.parents[i] if self.parents else None
                x = Tensor(x, node is not None, node)
                if uses is not None:
                    x.uses, x.exposed = uses, True
            tensors.append(x)
        if self._variadic is None or self._variadic not in self._needs:
            return tensors
        at, rest = self._needs.index(self._variadic), len(tensors) - len(self._needs) + 1
        return [*tensors[:at], tuple(tensors[at : at + rest]), *tensors[at + rest :]]

    def free(self) -> None:
        """Drop what backward needs; nothing can go back through this op any more."""
        self.parents, self.saved = None, NOTHING
        if "cache" in self.__dict__:
            del self.cache


def _share_memory(result: Tensor, inputs: Sequence[Operand]) -> None:
    """If the result is a view of an input, let both share their guard. Memory that NumPy does not
    own is exposed."""
    out, memory = result._data, result._data if result._data.base is None else result._data.base
    result.exposed = owner_of(out) is None
    for x in inputs:
        array: Any = x._data if isinstance(x, Tensor) else x
        if out is array or memory is array or memory is getattr(array, "base", None):
            result.exposed = True
            if isinstance(x, Tensor):
                result._share(x)


def _lifted(gradient: Any) -> Gradient:
    """What an override returns, an array or a function that returns one, as a tensor or a function
    that returns one."""
    return (
        None
        if gradient is None
        else (lambda: Tensor(gradient()))
        if callable(gradient)
        else Tensor(gradient)
    )


def unary(op: type[Op]) -> Callable[[Operand], Tensor]:
    """An op of one input as a function."""
    return named(lambda x: op()(x), op)


def binary(op: type[Op]) -> Callable[[Operand, Operand], Tensor]:
    """An op of two inputs as a function."""
    return named(lambda x, y: op()(x, y), op)


def named(function: Any, op: type[Op]) -> Any:
    """The function, called as the op is, and with its docstring."""
    function.__name__ = function.__qualname__ = op.__name__.lower()
    function.__doc__, function.__module__ = op.__doc__, op.__module__
    return function
