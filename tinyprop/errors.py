"""Error messages with three parts: what was got, which rule it breaks, what to try."""


def explain(got: str, rule: str, hint: str) -> str:
    """The text of an error.

    >>> print(explain("reshape of (2, 3) to (4,)", "the number of elements must stay 6", "reshape(6)"))
    got:  reshape of (2, 3) to (4,)
    rule: the number of elements must stay 6
    try:  reshape(6)
    """
    return f"got:  {got}\nrule: {rule}\ntry:  {hint}"


class ShapeError(ValueError):
    """Shapes that do not go together: ShapeError(got, rule, hint)."""

    def __str__(self) -> str:
        return explain(*self.args)


class GradientError(RuntimeError):
    """A gradient that is wrong, missing, or asked for where there is none: GradientError(got, rule, hint)."""

    def __str__(self) -> str:
        return explain(*self.args)


class StateError(ValueError):
    """A saved state that does not belong to what it is loaded into: StateError(got, rule, hint)."""

    def __str__(self) -> str:
        return explain(*self.args)


class BackendError(RuntimeError):
    """A backend that is not there, or arrays of two backends in one expression."""
