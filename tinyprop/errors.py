"""Error messages with three parts: what was got, which rule it breaks, what to try."""


def explain(got: str, rule: str, hint: str) -> str:
    """The text of an error.

    >>> print(explain("reshape of (2, 3) to (4,)", "the number of elements must stay 6", "reshape(6)"))
    got:  reshape of (2, 3) to (4,)
    rule: the number of elements must stay 6
    try:  reshape(6)
    """
    return f"got:  {got}\nrule: {rule}\ntry:  {hint}"


class Explained(Exception):
    """An error made of the three parts: ShapeError(got, rule, hint)."""

    def __str__(self) -> str:
        return explain(*self.args)


class ShapeError(Explained, ValueError):
    """Shapes that do not go together."""


class GradientError(Explained, RuntimeError):
    """A gradient that is wrong, missing, or asked for where there is none."""


class StateError(Explained, ValueError):
    """A saved state that does not belong to what it is loaded into."""


class DataError(Explained, ValueError):
    """A data file that is missing, broken or not what it should be; the first part names the file."""


class DivergenceError(Explained, ArithmeticError):
    """A training whose numbers are no longer finite."""


class BackendError(RuntimeError):
    """A backend that is not there, or arrays of two backends in one expression."""
