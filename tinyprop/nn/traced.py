"""A module whose forward is a list of steps: what `tp.from_torch` makes of a forward that is
written in Python."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from .. import functional as F
from ..engine.errors import explain
from ..engine.stand_in import StandIn
from ..engine.tensor import Tensor
from .module import Module


@dataclass(frozen=True)
class Result:
    """Stands for the result of a step, or for an input."""

    name: str


@dataclass(frozen=True)
class Member:
    """Stands for a tensor of the module, as "scale" or "blocks.0.scale"."""

    place: str


@dataclass(frozen=True)
class Step:
    """One call: of the layer at a place of the module, or of a function."""

    name: str
    call: str | Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


@dataclass(frozen=True)
class Program:
    """Steps that lead from inputs to a result."""

    inputs: tuple[str, ...]
    steps: tuple[Step, ...]
    result: Any


class Traced(Module):
    """A module that runs a program, one in training and one in evaluation. Its layers and tensors
    have the names that they have in PyTorch; a function without weights, such as F.relu, is a layer
    with the name of its step.

    >>> net, x = Traced("Doubling"), Result("x")
    >>> program = Program(("x",), (Step("sum", add, (x, x), {}),), Result("sum"))
    >>> net.set_programs(program, program)
    >>> net(tp.tensor([3.0]))
    tensor([6.])
    """

    def __init__(self, kind: str):
        self._kind = kind  # the class that it was in PyTorch

    def set_programs(self, training: Program, evaluation: Program) -> None:
        """Say what forward does in each mode."""
        self._programs = {True: training, False: evaluation}

    def program(self, training: bool) -> Program:
        """What forward does in this mode."""
        return self._programs[training]

    def forward(self, *inputs: Any) -> Any:
        program = self.program(self.training)
        if len(inputs) != len(program.inputs):
            got = f"{len(inputs)} inputs of {self._kind}"
            rule = f"it was traced with {', '.join(program.inputs)}"
            raise TypeError(explain(got, rule, "trace a forward that takes what it needs"))
        results = dict(zip(program.inputs, inputs, strict=True))
        for step in program.steps:
            arguments = self._fill_in(step.arguments, results)
            keywords = self._fill_in(step.keywords, results)
            function = step.call if callable(step.call) else member(self, step.call)
            results[step.name] = function(*arguments, **keywords)
        return self._fill_in(program.result, results)

    def _fill_in(self, value: Any, results: Mapping[str, Any]) -> Any:
        """The value with results and members in place of what stands for them."""
        if isinstance(value, Result):
            return results[value.name]
        if isinstance(value, Member):
            return member(self, value.place)
        if isinstance(value, (list, tuple)):
            return type(value)(self._fill_in(element, results) for element in value)
        if isinstance(value, Mapping):
            return {name: self._fill_in(element, results) for name, element in value.items()}
        return value

    def extra_repr(self) -> str:
        return self._kind


def member(module: Module, place: str) -> Any:
    """What a module has at a place such as "blocks.0.weight"."""
    for name in place.split("."):
        module = getattr(module, name)
    return module


# What PyTorch's functions do, with the names of their arguments


def add(input: Any, other: Any) -> Any:
    return input + other


def subtract(input: Any, other: Any) -> Any:
    return input - other


def multiply(input: Any, other: Any) -> Any:
    return input * other


def divide(input: Any, other: Any) -> Any:
    return input / other


def floor_divide(input: int, other: int) -> int:
    return input // other


def negate(input: Any) -> Any:
    return -input


def same(input: Any) -> Any:
    return input


def shape_of(input: Any, name: str) -> tuple[int, ...]:
    """getattr(x, "shape")."""
    return input.shape


def size_of(input: Any, dim: int | None = None) -> Any:
    return input.shape if dim is None else input.shape[dim]


def element_of(shape: tuple[int, ...], index: Any) -> Any:
    return shape[index]


def reshape(input: Any, *shape: Any) -> Any:
    """x.view(...) or x.reshape(...): sizes one by one or in a tuple."""
    sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    return input.reshape(tuple(sizes))


def concatenate(tensors: Any, dim: int = 0) -> Any:
    for x in tensors:
        if isinstance(x, StandIn):
            raise x.refuse("cat")
    return F.concatenate(tensors, dim)


def softmax(input: Any, dim: int, _stacklevel: int = 3, dtype: None = None) -> Any:
    return F.softmax(input, dim)


def log_softmax(input: Any, dim: int, _stacklevel: int = 3, dtype: None = None) -> Any:
    return F.log_softmax(input, dim)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    return F.linear(input, weight, bias)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    return F.conv2d(input, weight, bias, stride, padding, dilation, groups)


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    return F.dropout(input, p, training)


def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    return F.layer_norm(input, tuple(normalized_shape), weight, bias, eps)


def rms_norm(input: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    return F.rms_norm(input, tuple(normalized_shape), weight, eps)


def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    return F.group_norm(input, num_groups, weight, bias, eps)


def prelu(input: Any, weight: Tensor) -> Any:
    return F.prelu(input, weight)
