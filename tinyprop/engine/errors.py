"""Errors whose messages have three parts: what was given, which rule it breaks, and what to try."""

from collections.abc import Iterable


def explain(got: str, rule: str, hint: str) -> str:
    """The text of an error message.

    >>> rule = "the number of elements must stay 6"
    >>> print(explain("reshape of (2, 3) to (4,)", rule, "reshape(6)"))
    got:  reshape of (2, 3) to (4,)
    rule: the number of elements must stay 6
    try:  reshape(6)
    """
    return f"got:  {got}\nrule: {rule}\ntry:  {hint}"


def parts_of(error: BaseException) -> tuple[str, str, str] | None:
    """The three parts of a message that has them.

    >>> parts_of(ValueError(explain("3 samples", "at least 4", "4")))
    ('3 samples', 'at least 4', '4')
    """
    lines = str(error).splitlines()
    if [line[:6] for line in lines] != ["got:  ", "rule: ", "try:  "]:
        return None
    got, rule, hint = (line[6:] for line in lines)
    return got, rule, hint


def name_place(error: Exception, place: str) -> None:
    """Say in the first part of an error's message where it happened. An error that does not have
    the three parts stays as it is.

    >>> error = ValueError(explain("std = -1", "std >= 0", "std=1.0"))
    >>> name_place(error, "the layer 2 ReLU")
    >>> print(error)
    got:  std = -1, at the layer 2 ReLU
    rule: std >= 0
    try:  std=1.0
    >>> other = ValueError("math domain error")
    >>> name_place(other, "the layer 2 ReLU")
    >>> print(other)
    math domain error
    """
    if isinstance(error, Explained):
        got, *others = error.args
        error.args = (f"{got}, at {place}", *others)
    elif parts := parts_of(error):
        got, rule, hint = parts
        error.args = (explain(f"{got}, at {place}", rule, hint),)


class Explained(Exception):
    """An error made of the three parts: ShapeError(got, rule, hint)."""

    def __init_subclass__(cls) -> None:
        cls.__module__ = "tinyprop"  # users import it from there, and tracebacks show it

    def __str__(self) -> str:
        return explain(*self.args)


class ShapeError(Explained, ValueError):
    """Shapes that do not fit together.

    >>> tp.tensor([1.0, 2.0]).item()
    Traceback (most recent call last):
        ...
    tinyprop.ShapeError: got:  item() of shape (2,)
    rule: only a tensor with one element can become a number
    try:  sum() first, or t[0]
    """


class GradientError(Explained, RuntimeError):
    """A gradient that is wrong or missing, or of something that has none.

    >>> tp.tensor([1.0]).backward()
    Traceback (most recent call last):
        ...
    tinyprop.GradientError: got:  a gradient of a tensor of shape (1,) that does not require one
    rule: some input must have requires_grad=True, and no_grad() must not be active
    try:  tp.tensor(..., requires_grad=True)
    """


class EditError(Explained, ValueError):
    """An in-place edit of values that a graph still needs for its backward pass.

    >>> issubclass(tp.EditError, ValueError)  # as NumPy's error for a read-only array
    True
    """


class StateError(Explained, ValueError):
    """A saved state that does not match what it is loaded into.

    >>> tp.nn.Flatten().load_state_dict({"weight": tp.tensor([1.0]).data})
    Traceback (most recent call last):
        ...
    tinyprop.StateError: got:  a state with unknown 'weight'
    rule: a state has exactly the names of the network's parameters and buffers
    try:  build the network as it was when the state was saved
    """


class UnknownNameError(Explained, KeyError, ValueError):
    """A name that is in no table.

    >>> issubclass(tp.UnknownNameError, KeyError)
    True
    """


class DataError(Explained, ValueError):
    """Data that are missing, damaged or of the wrong kind; the first part names their file, if any.

    >>> rule, hint = "an image has 3073 of them", "delete it, and load again"
    >>> print(tp.DataError("train.bin of 0 bytes", rule, hint))
    got:  train.bin of 0 bytes
    rule: an image has 3073 of them
    try:  delete it, and load again
    """


class DivergenceError(Explained, ArithmeticError):
    """A training run whose numbers are no longer finite.

    >>> net = tp.nn.Sequential(tp.nn.Linear(1, 2))
    >>> step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), lr=0.1), threads=1)
    >>> step(tp.tensor([[float("nan")]]), [0])
    Traceback (most recent call last):
        ...
    tinyprop.DivergenceError: got:  a loss of nan, first not finite in the input
    rule: loss and gradients are finite numbers; nothing was updated with these
    try:  samples without NaN or infinity
    """


class BackendError(RuntimeError):
    """A backend that is not available, or arrays of two backends in one expression.

    >>> tp.use_backend("abacus")
    Traceback (most recent call last):
        ...
    tinyprop.BackendError: There is no backend 'abacus': choose 'numpy' or 'cupy'.
    """

    __module__ = "tinyprop"


def close_names(typed: str, known: Iterable[str]) -> str:
    """Up to three names that look like what was typed, in words; nothing if there are none.

    >>> from tinyprop.engine.errors import close_names
    >>> close_names("relo", ["relu", "prelu", "sin"])
    "'relu' or 'prelu'"
    """
    import difflib

    nearest = [repr(name) for name in difflib.get_close_matches(typed, known)]
    if len(nearest) < 2:
        return "".join(nearest)
    return f"{', '.join(nearest[:-1])} or {nearest[-1]}"
