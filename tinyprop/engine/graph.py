"""The graph of a computation. An op is a node: it knows its inputs, and how to pass a gradient back
to them."""

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

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
from .guard import Saved, owner_of
from .overrides import table, try_overrides
from .stand_in import stand_in_among
from .tensor import Operand, Tensor

if TYPE_CHECKING:
    from contextlib import _GeneratorContextManager

# an op stands for its result; a tensor in the graph is a leaf
Node: TypeAlias = Union["Op", Tensor]
Parents: TypeAlias = tuple[Node | None, ...] | None
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
    masks = True  # whether it takes bools alone; otherwise they are refused
    wide = False  # whether integers become int64 first, because many are added
    # what to try when forward refuses the shapes; without one, errors pass as they are
    hint: str | None = None
    function: Callable[..., Tensor] | None = None  # the public one, if it has one by `unary`, ...
    _needs: tuple[int, ...] = ()  # what backward needs: positions of inputs, or OUT
    _variadic: int | None = None  # the position of the input `*xs`, if forward has one

    recorded = False
    number: int  # in the order of recording, so that inputs come first
    parents: Parents  # where the gradients go; None once the graph is freed
    # what backward needs, in the order in which it names it; `*xs` is one tuple
    saved: tuple[Saved | tuple[Saved, ...], ...] = ()
    shape: tuple[int, ...]
    dtype: DType

    def __init_subclass__(cls) -> None:
        positions: dict[str, int] = {}
        cls._variadic = None
        for i, parameter in enumerate(_parameters_after_self(cls.forward)):
            is_optional = parameter.default is not parameter.empty
            is_setting = parameter.kind is parameter.KEYWORD_ONLY
            if not is_optional and not is_setting:
                positions[parameter.name] = i
            if parameter.kind is parameter.VAR_POSITIONAL:
                cls._variadic = i
        cls._needs = ()
        if cls.backward is not Op.backward:
            names = [parameter.name for parameter in _parameters_after_self(cls.backward)[1:]]
            cls._check_names(names, list(positions))
            positions["out"] = OUT
            cls._needs = tuple(positions[name] for name in names)

    @classmethod
    def _check_names(cls, names: list[str], inputs: list[str]) -> None:
        """Refuse a backward that names what is neither an input of forward nor its result."""
        for name in names:
            if name not in inputs and name != "out":
                raise TypeError(
                    explain(
                        f"{cls.__name__}.backward with a parameter {name!r}",
                        "after the gradient come inputs of forward that have no default "
                        f"({', '.join(inputs)}) or out",
                        "the name that forward gives it; save anything else as an attribute",
                    )
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
            return self._unrecorded_copy()(*inputs)

        arrays, parents = _unwrap(inputs)
        backend = fast_path_backend(arrays, self.floating)
        if backend is None:
            stand_in = stand_in_among(inputs)
            if stand_in is not None:
                return stand_in.answer(self, inputs, {})
            arrays, backend = promote_operands(
                type(self).__name__, arrays, self.floating, self.masks, self.wide
            )

        self.recorded = parents is not None and current().recording
        out = self._compute(arrays, backend)
        result = Tensor(out, self.recorded, self if self.recorded else None)

        # before recording: a result that is saved counts its uses together with the input
        if out.base is not None or id(out) in map(id, arrays):
            _share_memory(result, inputs)
        if self.recorded:
            self._record(inputs, parents, arrays, result)
        return result

    def _unrecorded_copy(self) -> "Op":
        """An op with the same settings, which has not been applied."""
        copy = object.__new__(type(self))
        for name, value in vars(self).items():
            if name not in ("recorded", "number", "parents", "saved", "cache"):
                copy.__dict__[name] = value
        return copy

    def _compute(self, arrays: list[Any], backend: str) -> Array:
        """The result of forward, or of an override."""
        rule = type(self).forward
        out = NotImplemented
        try:
            if rule in table[backend]:
                out = try_overrides(rule, backend, self, *arrays)
            if out is NotImplemented:
                out = rule(self, *arrays)
        except (ValueError, IndexError) as error:
            if self.hint is None or isinstance(error, ShapeError):
                raise
            shapes = ", ".join(str(a.shape) if is_array(a) else repr(a) for a in arrays)
            raise ShapeError(f"{type(self).__name__}({shapes})", str(error), self.hint) from None
        except OverflowError as error:  # a Python integer beside an array of small integers
            got = f"{type(self).__name__} of {_described(arrays)}"
            hint = "x.astype('int64')"
            raise OverflowError(explain(got, str(error), hint)) from None
        if isinstance(out, np.ndarray):
            return out
        return self._checked_output(out)

    def _checked_output(self, out: Any) -> Array:
        """What forward returned, as an array: reductions return NumPy scalars."""
        array = as_array(out)
        if not is_array(array):
            raise TypeError(
                explain(
                    f"{type(self).__name__}.forward returned a {type(out).__name__}",
                    "forward takes arrays and returns an array",
                    "compute with arrays in forward",
                )
            )
        return array

    def _record(
        self, inputs: Sequence[Operand], parents: Parents, arrays: list[Any], result: Tensor
    ) -> None:
        """Make this op a node of the graph, with all that its backward pass needs."""
        out = result._data
        self.number = next(_numbers)
        self.parents = parents
        self.shape = out.shape
        self.dtype = out.dtype
        if not self._needs:
            return
        saved: list[Any] = []
        for i in self._needs:
            if i == OUT:
                saved.append(Saved(out, result))
            elif i == self._variadic:
                saved.append(tuple(map(Saved, arrays[i:], inputs[i:])))
            else:
                saved.append(Saved(arrays[i], inputs[i]))
        self.saved = tuple(saved)

    def gradients(self, g: Tensor) -> Sequence[Gradient]:
        """The gradients with respect to the inputs, by the backward rule or by an override of it.

        An override computes with arrays, so its gradients have no graph: where a graph is recorded,
        the rule is used.
        """
        backend = backend_of(g._data)
        has_override = type(self).backward in table[backend]
        result: Any = NotImplemented
        if has_override and not current().recording:
            result = self._overridden_gradients(g._data, backend)
        if result is NotImplemented:
            result = self.backward(g, *self._saved_tensors())
        if not isinstance(result, tuple):
            result = (result,)
        expected = len(self.parents or ())
        if len(result) != expected:
            raise GradientError(
                f"{len(result)} gradients from {type(self).__name__}.backward for {expected} "
                "inputs",
                "it returns one gradient for each input of forward, or None",
                "return a tuple in the order of forward's parameters",
            )
        return result

    def _overridden_gradients(self, g: Array, backend: str) -> Any:
        """The gradients that an override computes; NotImplemented if all decline."""
        rule = type(self).backward
        result = try_overrides(rule, backend, self, g, *self.saved_arrays())
        if result is NotImplemented:
            return NotImplemented
        if not isinstance(result, tuple):
            result = (result,)
        return tuple(map(as_lazy_tensor, result))

    def saved_arrays(self) -> list[Any]:
        """What was saved, as arrays and numbers; that of `*xs` as a tuple."""
        arrays: list[Any] = []
        for saved in self.saved:
            if isinstance(saved, tuple):
                arrays.append(tuple(each.array for each in saved))
            else:
                arrays.append(saved.array)
        return arrays

    def _saved_tensors(self) -> list[Any]:
        """What was saved, as tensors that lead on into the graph; numbers as they are."""
        tensors: list[Any] = []
        parents = self.parents or ()
        for i, saved in zip(self._needs, self.saved, strict=True):
            if isinstance(saved, tuple):
                tensors.append(tuple(map(_saved_tensor, saved, parents[i:])))
            elif i == OUT:
                tensors.append(_saved_tensor(saved, self))
            else:
                tensors.append(_saved_tensor(saved, parents[i]))
        return tensors

    def free(self) -> None:
        """Drop what backward needs; nothing can go back through this op any more."""
        self.parents = None
        self.saved = ()
        if "cache" in self.__dict__:
            del self.cache


def _described(arrays: list[Any]) -> str:
    """Operands by their dtypes; numbers as they are."""
    return ", ".join(str(a.dtype) if is_array(a) else repr(a) for a in arrays)


def _parameters_after_self(method: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(method).parameters.values())[1:]


def _unwrap(inputs: Sequence[Operand]) -> tuple[list[Any], Parents]:
    """The arrays of the inputs, and the nodes to which their gradients go: None if no input
    requires a gradient."""
    arrays: list[Any] = []
    parents: list[Node | None] = []
    requires_grad = False
    for x in inputs:
        parent = None
        if isinstance(x, Tensor):
            if x.requires_grad:
                parent = x if x.node is None else x.node
                requires_grad = True
            x = x._data
        arrays.append(x)
        parents.append(parent)
    return arrays, tuple(parents) if requires_grad else None


def _share_memory(result: Tensor, inputs: Sequence[Operand]) -> None:
    """If the result is an input, or a view of one, let both share their guard. Memory that NumPy
    does not own is exposed."""
    out = result._data
    memory = out if out.base is None else out.base
    for x in inputs:
        array: Any = x._data if isinstance(x, Tensor) else x
        is_same_memory = memory is array or memory is getattr(array, "base", None)
        if is_same_memory:
            result.exposed = True
            if isinstance(x, Tensor):
                result.uses = x.uses
    if not result.exposed:
        result.exposed = owner_of(out) is None


def _saved_tensor(saved: Saved, node: Node | None) -> Any:
    """What was saved as a tensor whose gradient goes to that node; a number as it is."""
    array = saved.array
    if isinstance(array, (int, float)):
        return array
    tensor = Tensor(array, node is not None, node)
    if saved.uses is not None:
        tensor.uses = saved.uses
    return tensor


def as_lazy_tensor(gradient: Any) -> Gradient:
    """What an override returns, an array or a function that returns one, as a tensor or a function
    that returns one."""
    if gradient is None:
        return None
    if callable(gradient):
        return lambda: Tensor(gradient())
    return Tensor(gradient)


def unary(op: type[Op]) -> Callable[[Operand], Tensor]:
    """An op of one input as a function."""
    return named(lambda x: op()(x), op)


def binary(op: type[Op]) -> Callable[[Operand, Operand], Tensor]:
    """An op of two inputs as a function."""
    return named(lambda x, y: op()(x, y), op)


def named(function: Any, op: type[Op]) -> Any:
    """The function with the name and the docstring of the op."""
    function.__name__ = function.__qualname__ = op.__name__.lower()
    function.__doc__ = op.__doc__
    function.__module__ = op.__module__
    op.function = staticmethod(function)
    return function
