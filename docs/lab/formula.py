"""The reader's own activation, from a formula such as x * sigmoid(x)."""

import ast
import difflib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tinyprop as tp
from tinyprop import functional as F

FUNCTIONS: dict[str, Callable] = {
    "abs": F.abs,
    "clip": lambda x, low, high: F.minimum(F.maximum(x, low), high),
    "cos": F.cos,
    "elu": F.elu,
    "erf": F.erf,
    "exp": F.exp,
    "gelu": F.gelu,
    "hardtanh": F.hardtanh,
    "log": F.log,
    "max": F.maximum,
    "maximum": F.maximum,
    "min": F.minimum,
    "minimum": F.minimum,
    "relu": F.relu,
    "selu": F.selu,
    "sigmoid": F.sigmoid,
    "silu": F.silu,
    "sin": F.sin,
    "softplus": F.softplus,
    "sqrt": F.sqrt,
    "tanh": F.tanh,
}
ARGUMENTS = {"clip": 3, "max": 2, "maximum": 2, "min": 2, "minimum": 2}  # the others have one
NUMBERS = {"pi": math.pi, "e": math.e}
OPERATORS: dict[type, Callable] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.Pow: lambda a, b: a**b,
}
LONGEST = 200  # characters
LARGEST_POWER = 8.0
FARTHEST = 12.0  # kinks are looked for between -FARTHEST and FARTHEST
POINTS = 2401  # of the grid for that


class FormulaError(ValueError):
    """What is wrong with a formula, in words."""


def activation(text: str) -> tp.Activation:
    """The record of a formula in x.

    >>> activation("x * sigmoid(x)")(tp.tensor([0.0, 1.0]))
    tensor([0.       , 0.7310586])
    >>> activation("max(x - 1, 0)").kinks
    (1.0,)
    """
    tree = parsed(text)
    check(tree)
    if not contains_x(tree):
        raise FormulaError("This formula does not contain x. Try x * sigmoid(x).")
    points = np.linspace(-8.0, 8.0, 65)
    with np.errstate(all="ignore"):
        try:
            function = compiled(tree)
            seen = function(tp.tensor(points)).numpy().astype("float32")
        except (ArithmeticError, ValueError) as error:
            raise FormulaError(f"This formula cannot be computed: {error}.") from None
    if not np.isfinite(seen).all():
        place = points[~np.isfinite(seen)][0]
        raise FormulaError(
            f"This formula has no finite value at x = {place:g}, and inputs are Gaussian numbers. "
            "Try a function that is defined everywhere."
        )
    if np.ptp(seen) == 0.0:
        raise FormulaError("This formula has the same value everywhere, so no signal passes.")
    return tp.Activation(function, "own", kinks=kinks(tree))


def parsed(text: str) -> ast.expr:
    if not text.strip():
        raise FormulaError("Type a formula in x, for example x * sigmoid(x).")
    if len(text) > LONGEST:
        raise FormulaError(f"This formula has more than {LONGEST} characters.")
    try:
        return ast.parse(text.strip().replace("^", "**"), mode="eval").body
    except SyntaxError:
        raise FormulaError(
            "I cannot read this formula. Are all parentheses closed, and is there a * between "
            "factors, as in 2 * x?"
        ) from None


def check(node: ast.expr) -> None:
    """Refuse everything that is not arithmetic in x with known functions."""
    if isinstance(node, ast.Constant):
        if type(node.value) not in (int, float) or not abs(node.value) < 1e6:
            raise FormulaError(f"{node.value!r} is not a number below a million.")
    elif isinstance(node, ast.Name):
        if node.id != "x" and node.id not in NUMBERS:
            raise FormulaError(unknown(node.id, ["x", *NUMBERS, *FUNCTIONS]))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        check(node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        check(node.left)
        check(node.right)
        if isinstance(node.op, ast.Pow):
            check_power(node.right)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        check_call(node.func.id, node)
    else:
        raise FormulaError(
            f"I do not understand {ast.unparse(node)!r}. A formula has x, numbers, + - * / **, and "
            f"the functions {', '.join(FUNCTIONS)}."
        )


def check_power(exponent: ast.expr) -> None:
    number = exponent.operand if isinstance(exponent, ast.UnaryOp) else exponent
    if not isinstance(number, ast.Constant) or number.value > LARGEST_POWER:
        raise FormulaError(
            f"A power is a number up to {LARGEST_POWER:g}, as in x**2. For others, use exp."
        )


def check_call(name: str, node: ast.Call) -> None:
    if name not in FUNCTIONS:
        raise FormulaError(unknown(name, list(FUNCTIONS)))
    wanted = ARGUMENTS.get(name, 1)
    if len(node.args) != wanted or node.keywords:
        things = "one argument" if wanted == 1 else f"{wanted} arguments"
        raise FormulaError(f"{name} takes {things}, but here it has {len(node.args)}.")
    for argument in node.args:
        check(argument)


def unknown(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, 1)
    hint = f"Did you mean {close[0]}?" if close else f"I know {', '.join(names)}."
    return f"I do not know {name!r}. {hint}"


def compiled(node: ast.expr) -> Callable[[Any], Any]:
    """The function of a formula that has been checked. Parts without x are computed here, once."""
    if isinstance(node, ast.Name) and node.id == "x":
        return lambda x: x
    if not contains_x(node):
        number = constant(node)
        return lambda x: number
    if isinstance(node, ast.UnaryOp):
        operand = compiled(node.operand)
        return (lambda x: -operand(x)) if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        operator, left, right = OPERATORS[type(node.op)], compiled(node.left), compiled(node.right)
        return lambda x: operator(left(x), right(x))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    function = FUNCTIONS[node.func.id]
    arguments = [compiled(argument) for argument in node.args]
    if len(arguments) == 1:
        (only,) = arguments
        return lambda x: function(only(x))
    return lambda x: function(*[argument(x) for argument in arguments])


def constant(node: ast.expr) -> float:
    """The number that a part without x is."""
    if isinstance(node, ast.Constant):
        return float(node.value)
    if isinstance(node, ast.Name):
        return NUMBERS[node.id]
    if isinstance(node, ast.UnaryOp):
        operand = constant(node.operand)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](constant(node.left), constant(node.right))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    numbers = [tp.tensor(np.float64(constant(argument))) for argument in node.args]
    return FUNCTIONS[node.func.id](*numbers).item()


def contains_x(tree: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "x" for node in ast.walk(tree))


# -- where the function or its slope jumps


def kinks(tree: ast.expr) -> list[float]:
    """Where a part that has a kink meets it."""
    found: set[float] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for distance in distances(node):
                found |= zeros(distance)
    return sorted(found)


def distances(node: ast.Call) -> list[Callable[[np.ndarray], np.ndarray]]:
    """Functions of x that are 0 where this call has a kink."""
    assert isinstance(node.func, ast.Name)
    name = node.func.id

    def of(argument: ast.expr) -> Callable[[np.ndarray], np.ndarray]:
        function = compiled(argument)
        return lambda x: np.broadcast_to(as_array(function(tp.tensor(x))), x.shape)

    first, *rest = [of(argument) for argument in node.args]
    if name in ("max", "maximum", "min", "minimum", "clip"):
        return [lambda x, other=other: first(x) - other(x) for other in rest]
    places = tp.activations[name].kinks if name in tp.activations else ()
    return [lambda x, place=place: first(x) - place for place in places]


def as_array(number: Any) -> np.ndarray:
    return number.numpy() if isinstance(number, tp.Tensor) else np.asarray(number)


def zeros(function: Callable[[np.ndarray], np.ndarray]) -> set[float]:
    """Where a function changes its sign, by bisection."""
    x = np.linspace(-FARTHEST, FARTHEST, POINTS)
    with np.errstate(all="ignore"):
        y = function(x)
        exact = {round(float(place), 12) for place in x[y == 0.0]}
        if len(exact) > len(x) // 2:  # it is 0 everywhere
            return set()
        (left,) = np.nonzero(y[:-1] * y[1:] < 0.0)
        low, high = x[left], x[left + 1]
        for _ in range(60):
            middle = 0.5 * (low + high)
            is_left = np.sign(function(middle)) == np.sign(y[left])
            low, high = np.where(is_left, middle, low), np.where(is_left, high, middle)
    return exact | {round(float(place), 12) for place in 0.5 * (low + high)}
