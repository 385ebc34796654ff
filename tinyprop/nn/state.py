"""State: what `tp.propagate` carries through a network in place of a tensor.

A layer that is called with a State answers by its method `propagate`, which by default runs its
`forward`: functions of `tp.functional` and operators have a rule for States here. A layer whose
forward does something else has a `propagate` of its own, in terms of the methods of a State.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, NoReturn

from .. import functional as F
from ..engine.arrays import (
    HostArray,
    array_module,
    as_int_tuple,
    float64,
    host_array,
    to_numpy,
)
from ..engine.context import current
from ..engine.errors import ShapeError, explain
from ..engine.graph import Op
from ..engine.stand_in import StandIn, calling_function
from ..engine.tensor import Tensor
from ..functional.activation import Activation
from ..functional.arithmetic import AsType, Clip, Elementwise
from ..functional.shapes import Reshape
from .declare import Statistics, declared
from .module import Module, definer


class NoRule(TypeError):
    """Something that propagate does not know."""


class NoAttribute(NoRule, AttributeError):
    """An attribute of tensors that a State does not have: `hasattr` says so."""


class NoForm(NoRule, ShapeError):
    """A shape that has no meaning for moments."""


class State(StandIn, ABC):
    """The moments of a signal at one place of a network.

    A layer of your own whose forward uses operators and functions that have a rule (linear maps,
    convolutions, activations, pooling, normalisers) needs nothing else. For any other layer, write
    a method `propagate` beside its forward, with the methods of a State. They return a new State
    and never change one. The same rule serves given and random weights. Tensors and arrays may be
    given wherever numbers may.

    >>> class Gate(tp.nn.Module):
    ...     def __init__(self, features):
    ...         self.inner = tp.nn.Linear(features, features)
    ...     def forward(self, x):
    ...         return tp.tensor(self.inner(x).tanh().numpy()) * 0.5
    ...     def propagate(self, state):
    ...         return self.inner(state).apply("tanh").scale(0.5)
    >>> net = tp.nn.Sequential(Gate(2), tp.nn.Linear(2, 1))
    >>> [record.layer for record in tp.propagate(net, [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]])]
    ['0.inner Linear', '0 Gate', '1 Linear']
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(1, units), or (1, C, H, W) for images: a State stands for a batch of one sample."""

    @abstractmethod
    def linear(self, weight: Any, bias: Any = None) -> "State":
        """weight (out, in) times each vector of values, plus a bias for each output."""

    @abstractmethod
    def convolve(
        self,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> "State":
        """Images convolved with filters (O, C / groups, kh, kw), as in `tp.functional.conv2d`."""

    @abstractmethod
    def apply(self, activation: Any, **params: Any) -> "State":
        """A function of each value: the name of an activation, or a function of tensors. Parameters
        are numbers, or have one value per channel."""

    @abstractmethod
    def scale(self, factor: Any = 1.0, shift: Any = 0.0) -> "State":
        """factor * x + shift. Each is a number, or has one value per channel, or the shape of a
        sample."""

    @abstractmethod
    def normalize_batch(self, eps: float = 0.0, each_value: bool = False) -> "State":
        """Each channel minus its mean, divided by its standard deviation, over the batch and all
        positions; or each value, over the batch."""

    @abstractmethod
    def normalize_sample(self, groups: int = 1, eps: float = 0.0, centered: bool = True) -> "State":
        """Each group of channels of a sample minus its mean, divided by its standard deviation,
        over all positions; not centered, it is only divided by its root mean square."""

    @abstractmethod
    def max_pool(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False
    ) -> "State":
        """The largest value of each window."""

    @abstractmethod
    def avg_pool(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> "State":
        """The mean of each window, in which the zeros of the border count."""

    @abstractmethod
    def drop(self, p: float) -> "State":
        """Dropout: each value is 0 with probability p, otherwise divided by 1 - p."""

    @abstractmethod
    def flatten(self, start_axis: int = 1) -> "State":
        """Images as vectors."""

    @abstractmethod
    def add(self, other: "State") -> "State":
        """The sum of two States of one network, whatever they have in common."""

    @abstractmethod
    def combine(self, function: Callable[..., Any], *args: Any) -> "State":
        """A function of each value with several arguments, as x * sigmoid(x): States that are
        functions of the same values, and numbers."""

    # What a forward asks of a tensor

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def dtype(self) -> Any:
        return host_array(0.0, float64).dtype

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, shape: Any = (), *more: int) -> "State":
        """As vectors: x.reshape(len(x), -1), or any shape that has the same meaning."""
        wanted = as_int_tuple((shape, *more) if more else shape)
        values = prod(self.shape)
        if wanted in (self.shape, (-1, *self.shape[1:])):
            return self
        if wanted in ((1, -1), (1, values), (-1, values)):
            return self.flatten()
        raise NoForm(
            f"reshape of a State {self.shape} to {wanted}",
            "propagate knows images (1, C, H, W) and vectors (1, units)",
            "x.reshape(len(x), -1), or x.flatten(1)",
        )

    # Operators: with numbers, arrays and tensors, and sums of States

    def __add__(self, other: Any) -> "State":
        if isinstance(other, State):
            return self.add(other)
        return self.scale(shift=self._operand(other))

    def __sub__(self, other: Any) -> "State":
        if isinstance(other, State):
            return self.add(-other)
        return self.scale(shift=-self._operand(other))

    def __rsub__(self, other: Any) -> "State":
        return self.scale(-1.0, self._operand(other))

    def __mul__(self, other: Any) -> "State":
        if isinstance(other, State):
            return self.combine(F.multiply, self, other)
        return self.scale(self._operand(other))

    def __truediv__(self, other: Any) -> "State":
        if isinstance(other, State):
            return self.combine(F.divide, self, other)
        return self.scale(1.0 / self._operand(other))

    def __neg__(self) -> "State":
        return self.scale(-1.0)

    def __matmul__(self, other: Any) -> "State":
        return self.linear(numbers(other).T)

    def __pow__(self, exponent: Any) -> "State":
        return self.apply(Activation(lambda u: u**exponent, "power", kinks=(0.0,)))

    def __abs__(self) -> "State":
        return self.apply("abs")

    __radd__ = __add__
    __rmul__ = __mul__

    def _operand(self, value: Any) -> Any:
        """A number, or an array for one sample that broadcasting gives, with one value per channel
        if that is all there is to say."""
        array = numbers(value)
        if array.size == 1:
            return float(array.reshape(()))
        sample = self.shape[1:]
        try:
            whole = array_module(array).broadcast_to(array, self.shape)[0]
        except ValueError:
            got = f"an operator of a State {self.shape} and an array {array.shape}"
            rule = "the array broadcasts against one sample"
            raise ShapeError(got, rule, f"shape {sample}, or a number") from None
        by_channel = whole.reshape(sample[0], -1)
        if (by_channel == by_channel[:, :1]).all():
            return by_channel[:, 0]
        return whole

    # What functions and ops do

    def answer(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if isinstance(function, Activation):
            return self.apply(function, **kwargs)
        if not isinstance(function, Op):
            return RULES[function](*args, **kwargs)
        if type(function) in OPS:
            return OPS[type(function)](function, *args)
        public = function.function
        if public in RULES:
            return RULES[public](*args)
        name = public.__name__ if public else calling_function()
        are_known = all(isinstance(x, (State, int, float)) for x in args)
        if not isinstance(function, Elementwise) or not are_known:
            raise self.refuse(name)
        if len(args) == 1:
            return self.apply(public or function)
        return self.combine(public or function, *args)

    def through(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        kind = type(module)
        if not has_rule(kind):
            if kind.forward is Module.forward:
                raise self.refusal(f"{kind.__name__}, which has no forward, with a State")
            return self.through_forward(module, args, kwargs)
        out = module.propagate(*args, **kwargs)
        if isinstance(out, State):
            return out
        raise TypeError(
            explain(
                f"{kind.__name__}.propagate, which returned a {type(out).__name__}",
                "the rule of a layer takes a State and returns one",
                "return what a method of the State returns, as state.scale(1.0)",
            )
        )

    def through_forward(self, module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What the forward does; where this has no rule, what the module declares that it does."""
        statistics = declared(module, "statistics")
        if statistics is None:
            return module.forward(*args, **kwargs)
        try:
            return module.forward(*args, **kwargs)
        except NoRule:
            after = self.normalize_by(statistics)
        scale = getattr(module, "weight", 1.0)
        shift = getattr(module, "bias", 0.0)
        return after.scale(scale, shift)

    def normalize_by(self, statistics: Statistics) -> "State":
        """As a module declares."""
        if statistics.over == "sample":
            units = self.shape[1]
            return self.normalize_sample(
                units // (statistics.group or units), 0.0, statistics.center
            )
        if not statistics.center:
            raise self.refuse("a normaliser of the batch that keeps means")
        return self.normalize_batch()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """array + state, and the like; NumPy's functions have no rule."""
        rule = OPERATORS.get(ufunc.__name__)
        if rule is not None and method == "__call__" and not kwargs:
            return rule(*inputs)
        raise self.refuse(f"numpy.{ufunc.__name__}")

    def refuse(self, name: str) -> NoRule:
        return self.refusal(f"{name} of a State")

    def refusal(self, subject: str) -> NoRule:
        """The error for something that has no rule."""
        running = current().running
        where = f", in the forward of {type(running[-1]).__name__}" if running else ""
        layer = type(running[-1]).__name__ if running else "your layer"
        return NoRule(
            explain(
                f"{subject}{where}",
                "propagate has no rule for what it does to the moments of a signal",
                f"write `def propagate(self, state)` in {layer}, with the methods of "
                "tp.theory.State; tp.observe(net, x) measures any network",
            )
        )

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:  # of tensors: x.relu() is F.relu(x)
            return partial(METHODS[name], self)
        if name.startswith("__"):
            raise AttributeError(name)
        raise NoAttribute(str(self.refuse(f".{name}")))

    def __getitem__(self, index: Any) -> NoReturn:
        raise self.refusal("an index into a State")

    def __iter__(self) -> NoReturn:
        raise self.refusal("a loop over a State")

    def __bool__(self) -> NoReturn:
        raise self.refusal("a State as a condition")

    def __float__(self) -> NoReturn:
        raise self.refuse("float()")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        raise self.refuse("a NumPy function")

    def __lt__(self, other: Any) -> NoReturn:
        raise self.refuse("a comparison")

    __le__ = __gt__ = __ge__ = __lt__

    def __rpow__(self, base: Any) -> "State":
        return self.apply(Activation(lambda u: base**u, "power"))

    def __rtruediv__(self, other: Any) -> "State":
        raise self.refusal("a division by a State")


def numbers(value: Any) -> HostArray:
    """A tensor, an array or a number as a float64 array on the host."""
    array = value._data if isinstance(value, Tensor) else value
    return host_array(to_numpy(array), float64)


def has_rule(kind: type[Module]) -> bool:
    """Whether a layer has a rule of its own for States, which belongs to its forward."""
    defines_rule = definer(kind, "propagate")
    is_own = defines_rule is not Module
    return is_own and issubclass(defines_rule, definer(kind, "forward"))


def _linear(x: Any, weight: Any, bias: Any = None) -> State:
    return x.linear(weight, bias)


def _conv2d(x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> State:
    return x.convolve(weight, bias, *args, **kwargs)


def _avg_pool2d(
    x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, count_include_pad: bool = True
) -> State:
    if not count_include_pad and padding not in (0, (0, 0)):
        raise TypeError(
            explain(
                "avg_pool2d with count_include_pad=False and padding",
                "its weights differ between positions; propagate has the same ones everywhere",
                "count_include_pad=True",
            )
        )
    return x.avg_pool(kernel_size, stride, padding)


def _batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> State:
    weight = 1.0 if weight is None else numbers(weight)
    bias = 0.0 if bias is None else numbers(bias)
    if training:
        return x.normalize_batch(eps).scale(weight, bias)
    factor = weight / (numbers(running_var) + eps) ** 0.5
    return x.scale(factor, bias - factor * numbers(running_mean))


def _group_norm(
    x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> State:
    weight = 1.0 if weight is None else numbers(weight)
    bias = 0.0 if bias is None else numbers(bias)
    return x.normalize_sample(num_groups, eps).scale(weight, bias)


def _layer_norm(
    x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> State:
    return _over_sample(x, "layer_norm", normalized_shape, weight, bias, eps, centered=True)


def _rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> State:
    return _over_sample(x, "rms_norm", normalized_shape, weight, None, eps, centered=False)


def _over_sample(
    x: Any, name: str, lengths: Any, weight: Any, bias: Any, eps: float, centered: bool
) -> State:
    lengths = as_int_tuple(lengths)
    if lengths != x.shape[1:]:
        raise TypeError(
            explain(
                f"{name} of a State {x.shape} over axes of lengths {lengths}",
                "propagate normalises over whole samples",
                f"normalized_shape={x.shape[1:]}, or (C, None, None) in a layer for images",
            )
        )
    state = x.normalize_sample(1, eps, centered)
    if weight is not None:
        state = state * weight
    if bias is not None:
        state = state + bias
    return state


def _dropout(x: Any, p: float = 0.5, training: bool = True) -> State:
    return x.drop(p) if training and p else x


def _astype(op: AsType, x: Any) -> State:
    if host_array(0, op.new_dtype).dtype.kind != "f":
        raise x.refuse(f"astype({op.new_dtype!r})")
    return x  # moments are float64 whatever the values are


def _prelu(x: Any, a: Any) -> State:
    return x.apply(F.prelu, a=a)


def _leaky_relu(x: Any, a: float = 0.01) -> State:
    return x.apply(F.leaky_relu, a=a)


def _elu(x: Any, alpha: float = 1.0) -> State:
    return x.apply(F.elu, alpha=alpha)


def _clip(op: Clip, x: Any) -> State:
    ends = [end for end in (op.low, op.high) if end is not None]
    return x.apply(Activation(lambda u: F.clip(u, op.low, op.high), "clip", kinks=ends))


def _sum(x: Any, y: Any) -> State:
    return x + y if isinstance(x, State) else y + x


def _difference(x: Any, y: Any) -> State:
    return x - y if isinstance(x, State) else y.__rsub__(x)


def _product(x: Any, y: Any) -> State:
    return x * y if isinstance(x, State) else y * x


def _quotient(x: Any, y: Any) -> State:
    return x / y if isinstance(x, State) else y.__rtruediv__(x)


def _matmul(x: Any, y: Any) -> State:
    if not isinstance(x, State):
        raise y.refusal("a matrix times a State")
    return x @ y


# what functions of tensors do to States; all other functions of each value are `apply`
RULES: dict[Any, Callable[..., State]] = {
    F.linear: _linear,
    F.matmul: _matmul,
    F.conv2d: _conv2d,
    F.max_pool2d: lambda x, *args, **kwargs: x.max_pool(*args, **kwargs),
    F.avg_pool2d: _avg_pool2d,
    F.batch_norm: _batch_norm,
    F.group_norm: _group_norm,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.dropout: _dropout,
    F.flatten: lambda x, start_axis=0: x.flatten(start_axis),
    F.prelu: _prelu,
    F.leaky_relu: _leaky_relu,
    F.elu: _elu,
    F.selu: lambda x: x.apply(F.selu),
    F.gelu: lambda x: x.apply(F.gelu),
    F.silu: lambda x: x.apply(F.silu),
    F.square: lambda x: x.apply(F.square),
    F.add: _sum,
    F.subtract: _difference,
    F.multiply: _product,
    F.divide: _quotient,
    F.negative: lambda x: -x,
}
# of ops that are functions of their own, and often called: these do not ask for a State
OPS: dict[type[Op], Callable[..., State]] = {
    Reshape: lambda op, x: x.reshape(op.new_shape),
    AsType: _astype,
    Clip: _clip,
}
# by the names of NumPy's functions
OPERATORS: dict[str, Callable[..., State]] = {
    "add": _sum,
    "subtract": _difference,
    "multiply": _product,
    "divide": _quotient,
}
METHODS: dict[str, Any] = {function.__name__: function for function in F.METHODS}
