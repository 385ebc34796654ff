"""Elementwise functions. NumPy's broadcasting applies; the engine undoes it in the gradients."""

import math
from typing import Any

from ..engine.arrays import (
    Array,
    Scalar,
    array_module,
    as_array,
    comparable_operands,
    exact_floats,
    fast_path_backend,
    float32,
    is_array,
    unwrap_scalar,
)
from ..engine.errors import explain
from ..engine.graph import Op, binary, unary
from ..engine.stand_in import accepts_stand_ins
from ..engine.tensor import Operand, Tensor, as_tensor, check_elements, tensor
from .special import erf as erf_of_array


class Elementwise(Op):
    hint = "shapes that are equal, or 1, on each axis counted from the right"


class Floating(Elementwise):
    """An elementwise function whose results are floats."""

    floating = True


class Ufunc(Floating):
    """A function of one array that NumPy and CuPy have under the name of its class."""

    def forward(self, x: Array) -> Array:
        return getattr(array_module(x), type(self).__name__.lower())(x)


class Add(Elementwise):
    """x + y, element by element.

    >>> F.add([1.0, 2.0], 10.0)
    tensor([11., 12.])
    """

    def forward(self, x: Array, y: Array) -> Array:
        return x + y

    def backward(self, g: Tensor) -> Any:
        return g, g


class Subtract(Elementwise):
    """x - y, element by element.

    >>> F.subtract([1.0, 2.0], 10.0)
    tensor([-9., -8.])
    """

    masks = False

    def forward(self, x: Array, y: Array) -> Array:
        return x - y

    def backward(self, g: Tensor) -> Any:
        return g, lambda: -g


class Multiply(Elementwise):
    """x * y, element by element.

    >>> F.multiply([1.0, 2.0], [[1.0], [10.0]])
    tensor([[ 1.,  2.],
            [10., 20.]])
    """

    def forward(self, x: Array, y: Array) -> Array:
        return x * y

    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Any:
        return lambda: g * y, lambda: g * x


class Divide(Floating):
    """x / y, element by element.

    >>> F.divide([1.0, 2.0], 4.0)
    tensor([0.25, 0.5 ])
    """

    def forward(self, x: Array, y: Array) -> Array:
        return x / y

    def backward(self, g: Tensor, y: Tensor, out: Tensor) -> Any:
        return lambda: g / y, lambda: -g * out / y


class Power(Elementwise):
    """x**y, element by element.

    >>> F.power([1.0, 2.0, 3.0], 2)
    tensor([1., 4., 9.])
    """

    masks = False

    def forward(self, x: Array, y: Array) -> Array:
        if _are_integers(x, y) and _has_negative(y):
            got = "a negative power of integers"
            raise TypeError(explain(got, "it is no integer", "x.astype('float32')"))
        return x**y

    def backward(self, g: Tensor, x: Tensor | Scalar, y: Tensor | Scalar) -> Any:
        return lambda: _power_slope_x(g, x, y), lambda: _power_slope_y(g, x, y)


def _are_integers(x: Any, y: Any) -> bool:
    kinds = {v.dtype.kind for v in (x, y) if is_array(v)}
    return "f" not in kinds and not isinstance(x, float) and not isinstance(y, float)


def _has_negative(y: Any) -> bool:
    return bool((y < 0).any()) if is_array(y) else y < 0


def _power_slope_x(g: Tensor, x: Any, y: Any) -> Tensor:
    """y x**(y - 1); the slope of x**0 is 0, at x = 0 too."""
    if isinstance(y, Tensor):
        base = where((x == 0) & (y == 0), 1.0, x)
        return g * (y * base ** (y - 1))
    if y == 0:
        return g * 0.0
    return g * (y * x ** (y - 1))


def _power_slope_y(g: Tensor, x: Any, y: Any) -> Tensor:
    """x**y log(x): 0 at x = 0 if y >= 0, minus infinity there if y < 0, and not defined for
    x < 0."""
    if not isinstance(x, Tensor):
        if x > 0:
            return g * x**y * math.log(x)
        return g * where(y < 0, -math.inf if x == 0 else math.nan, 0.0 if x == 0 else math.nan)
    defined = where(x >= 0, x, math.nan)
    return g * (x**y * log(where((x == 0) & (y >= 0), 1.0, defined)))


class Negative(Elementwise):
    """-x.

    >>> F.negative([1.0, -2.0])
    tensor([-1.,  2.])
    """

    masks = False

    def forward(self, x: Array) -> Array:
        return -x

    def backward(self, g: Tensor) -> Any:
        return -g


class Exp(Ufunc):
    """e to the power of each element.

    >>> F.exp([0.0, -1000.0])
    tensor([1., 0.])
    """

    def backward(self, g: Tensor, out: Tensor) -> Any:
        return g * out


class Expm1(Ufunc):
    """exp(x) - 1, accurate for small x.

    >>> F.expm1([0.0])
    tensor([0.])
    """

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return g * exp(x)


class Log(Ufunc):
    """The natural logarithm.

    >>> F.log([1.0])
    tensor([0.])
    """

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return g / x


class Log1p(Ufunc):
    """log(1 + x), accurate for small x.

    >>> F.log1p([0.0])
    tensor([0.])
    """

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return g / (1.0 + x)


class Sqrt(Ufunc):
    """The square root; its slope at 0 is infinite.

    >>> F.sqrt([4.0, 9.0])
    tensor([2., 3.])
    """

    def backward(self, g: Tensor, out: Tensor) -> Any:
        return g / (2.0 * out)


class Sin(Ufunc):
    """The sine of each element, in radians.

    >>> F.sin([0.0])
    tensor([0.])
    """

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return g * cos(x)


class Cos(Ufunc):
    """The cosine of each element, in radians.

    >>> F.cos([0.0])
    tensor([1.])
    """

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return -g * sin(x)


class Erf(Floating):
    """The error function, 2/sqrt(pi) times the integral of exp(-t^2) from 0 to x.

    >>> F.erf([0.0, 10.0])
    tensor([0., 1.])
    """

    def forward(self, x: Array) -> Array:
        return erf_of_array(x)

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return g * (2.0 / math.sqrt(math.pi)) * exp(-x * x)


class Abs(Elementwise):
    """The absolute value; its slope at 0 is taken as 0.

    >>> F.abs([-1.5, 2.0])
    tensor([1.5, 2. ])
    """

    masks = False

    def forward(self, x: Array) -> Array:
        return array_module(x).abs(x)

    def backward(self, g: Tensor, x: Tensor) -> Any:
        return g * array_module(x._data).sign(x._data)


class Maximum(Elementwise):
    """The larger of two, element by element; where both are equal, each gets half of the gradient.

    >>> F.maximum([1.0, 5.0], 3.0)
    tensor([3., 5.])
    """

    def forward(self, x: Array, y: Array) -> Array:
        return getattr(array_module(x, y), type(self).__name__.lower())(x, y)

    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Any:
        shared = where(compare("equal", x, y), 0.5 * g, g)
        return (
            lambda: where(compare("less", x, y), 0.0, shared),
            lambda: where(compare("less", y, x), 0.0, shared),
        )


class Minimum(Maximum):
    """The smaller of two, element by element; where both are equal, each gets half of the gradient.

    >>> F.minimum([1.0, 5.0], 3.0)
    tensor([1., 3.])
    """

    def backward(self, g: Tensor, x: Tensor, y: Tensor) -> Any:
        return super().backward(g, y, x)


class Where(Elementwise):
    def forward(self, condition: Array, x: Array, y: Array) -> Array:
        return array_module(condition, x, y).where(condition, x, y)

    def backward(self, g: Tensor, condition: Tensor) -> Any:
        return None, lambda: where(condition, g, 0.0), lambda: where(condition, 0.0, g)


class Clip(Elementwise):
    masks = False

    def __init__(self, low: float | None, high: float | None):
        self.low, self.high = low, high
        self.floating = isinstance(low, float) or isinstance(high, float)

    def forward(self, x: Array) -> Array:
        return array_module(x).clip(x, self.low, self.high)

    def backward(self, g: Tensor, x: Tensor, out: Tensor) -> Any:
        return where((x < out) | (x > out), 0.0, g)  # NaN passes its gradient


class AsType(Op):
    def __init__(self, dtype: Any):
        self.new_dtype = dtype

    def forward(self, x: Array) -> Array:
        return x.astype(self.new_dtype)

    def backward(self, g: Tensor) -> Any:
        return g  # the engine casts it back


add = binary(Add)
subtract = binary(Subtract)
multiply = binary(Multiply)
divide = binary(Divide)
power = binary(Power)
maximum = binary(Maximum)
minimum = binary(Minimum)
negative = unary(Negative)
exp = unary(Exp)
expm1 = unary(Expm1)
log = unary(Log)
log1p = unary(Log1p)
sqrt = unary(Sqrt)
sin = unary(Sin)
cos = unary(Cos)
erf = unary(Erf)
abs = unary(Abs)


@accepts_stand_ins
def square(x: Operand) -> Tensor:
    """x * x, element by element.

    >>> F.square([3.0])
    tensor([9.])
    """
    return multiply(x, x)


def rsqrt(x: Operand) -> Tensor:
    """1 / sqrt(x).

    >>> F.rsqrt([4.0])
    tensor([0.5])
    """
    return 1.0 / sqrt(x)


def where(condition: Operand, x: Operand, y: Operand) -> Tensor:
    """x where the condition, a mask of bools, holds, and y elsewhere.

    >>> F.where([True, False], 1.0, 2.0)
    tensor([1., 2.])
    """
    if not isinstance(condition, Tensor):
        condition = as_tensor(condition, like=x if isinstance(x, Tensor) else y)
    if condition.dtype.kind != "b":
        got = f"where with a condition of type {condition.dtype}"
        raise TypeError(explain(got, "a condition is a mask of bools", "x > 0, or condition != 0"))
    are_numbers = not isinstance(x, Tensor) and not isinstance(y, Tensor)
    if are_numbers and not is_array(x) and not is_array(y):
        x = tensor(unwrap_scalar(x), backend=condition.backend)
    return Where()(condition, x, y)


def clip(x: Operand, low: float | None = None, high: float | None = None) -> Tensor:
    """x limited to the range from low to high; no gradient passes outside it.

    >>> F.clip([-2.0, 0.5, 2.0], -1, 1)
    tensor([-1. ,  0.5,  1. ])
    """
    return Clip(as_bound(low), as_bound(high))(x)


def as_bound(bound: Any) -> Any:
    """A bound of a range as a Python number, or None; anything else is refused."""
    number = unwrap_scalar(bound)
    if number is not None and not isinstance(number, (int, float)):
        got = f"a bound of type {type(bound).__name__}"
        hint = "F.maximum(F.minimum(x, high), low), which takes tensors"
        raise TypeError(explain(got, "bounds are numbers or None", hint))
    return number


def as_float(x: Operand) -> Tensor:
    """x as a tensor of floats: integers and bools become float32, if it has them exactly."""
    x = as_tensor(x)
    if x.dtype.kind == "f":
        return x
    return Tensor(exact_floats(x._data, float32, "a function of floats"))


def astype(x: Operand, dtype: Any) -> Tensor:
    """x with elements of another type; its gradient has the old type. Integers and bools have no
    gradient.

    >>> F.astype([1.5, 2.0], "float64")
    tensor([1.5, 2. ], dtype=float64)
    """
    out = AsType(dtype)(x)
    check_elements(out.dtype, False)
    return out if out.dtype.kind == "f" else out.detach()


def compare(name: str, *operands: Operand) -> Tensor:
    """NumPy's comparison, or bitwise function of masks, of that name: a tensor that has no
    gradient."""
    arrays = [v._data if isinstance(v, Tensor) else v for v in operands]
    if name.startswith(("bitwise", "invert")):
        kinds = ", ".join(str(getattr(a, "dtype", type(a).__name__)) for a in arrays)
        if "float" in kinds:
            got = f"{name} of {kinds}"
            raise TypeError(explain(got, "masks are bools or integers", "(x > 0) & (y > 0)"))
    if fast_path_backend(arrays, floating=False) is None:
        arrays = comparable_operands(name, arrays)
    ufunc = getattr(array_module(*arrays), name)
    return Tensor(as_array(ufunc(*arrays)))
