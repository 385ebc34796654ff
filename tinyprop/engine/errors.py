"""Errors whose messages have three parts: what was given, which rule it breaks, what to try."""


def explain(got: str, rule: str, hint: str) -> str:
    """The text of an error message.

    >>> rule = "the number of elements must stay 6"
    >>> print(explain("reshape of (2, 3) to (4,)", rule, "reshape(6)"))
    got:  reshape of (2, 3) to (4,)
    rule: the number of elements must stay 6
    try:  reshape(6)
    """
    return f"got:  {got}\nrule: {rule}\ntry:  {hint}"


class Explained(Exception):
    """An error made of the three parts: ShapeError(got, rule, hint)."""

    def __init_subclass__(cls) -> None:
        cls.__module__ = "tinyprop"  # where users find it, and what a traceback shows

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
    """A gradient that is wrong or missing, or that was asked for where there is none.

    >>> tp.tensor([1.0]).backward()
    Traceback (most recent call last):
        ...
    tinyprop.GradientError: got:  a gradient of a tensor of shape (1,) that does not require one
    rule: some input must have requires_grad=True, and no_grad() must not be active
    try:  tp.tensor(..., requires_grad=True)
    """


class EditError(Explained, ValueError):
    """An edit in place of values that a graph still needs for its backward pass.

    >>> issubclass(tp.EditError, ValueError)  # as NumPy's error for a read-only array
    True
    """


class BackendError(RuntimeError):
    """A backend that is not available, or arrays of two backends in one expression.

    >>> tp.use_backend("abacus")
    Traceback (most recent call last):
        ...
    tinyprop.BackendError: There is no backend 'abacus': choose 'numpy' or 'cupy'.
    """

    __module__ = "tinyprop"
