"""What a check says if something is wrong: all of it at once, each in three parts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..engine.errors import Explained, explain, parts_of


@dataclass(frozen=True)
class Failure:
    """One thing that is wrong: the name of the check that found it, what came, what was expected,
    and what to try.

    >>> print(Failure("dtype", "float64 for float32", "a layer keeps the dtype", "Python numbers"))
    got:  dtype: float64 for float32
    rule: a layer keeps the dtype
    try:  Python numbers
    """

    check: str
    got: str
    rule: str
    hint: str

    def __str__(self) -> str:
        return explain(f"{self.check}: {self.got}", self.rule, self.hint)


class CheckError(AssertionError):
    """Everything that checks have found to be wrong, in `failures`.

    >>> error = CheckError([Failure("mean", "unit 0 has mean 1", "it is 0", "subtract it")])
    >>> [failure.check for failure in error.failures]
    ['mean']
    """

    __module__ = "tinyprop.testing"  # users import it from there, and tracebacks show it

    def __init__(self, failures: Sequence[Failure]):
        super().__init__(failures)
        self.failures = list(failures)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.failures))


class Wrong(Explained):
    """Raised inside a check, with the last three fields of its Failure."""


def run_checks(checks: Iterable[tuple[str, Callable[[], None]]], seed: int) -> None:
    """Run every check, and raise one CheckError if some of them fail."""
    failures: list[Failure] = []
    first_cause: Exception | None = None
    for name, check in checks:
        try:
            check()
        except Explained as error:
            failures.append(Failure(name, *map(str, error.args)))
        except Exception as error:
            first_cause = first_cause or error
            failure = _unexpected(name, error, seed)
            if failure.got not in [earlier.got for earlier in failures]:  # as in another check
                failures.append(failure)
    if failures:
        raise CheckError(failures) from first_cause


def _unexpected(name: str, error: Exception, seed: int) -> Failure:
    parts = parts_of(error)
    if parts is not None:
        got, rule, hint = parts
        return Failure(name, f"{got} (seed={seed})", rule, hint)
    lines = str(error).splitlines() or [""]
    got = f"{type(error).__name__}: {lines[0]} (seed={seed})"
    rule = "what worked for the first call works in every check"
    return Failure(name, got, rule, "look at the traceback, which has the place of this error")
