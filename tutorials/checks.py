"""Exercises that answer back. `check("1.2", answer)` says whether an answer is right or what is
wrong with it; `hint("1.2")` gives one more hint each time; `predict` takes a guess before `reveal`
shows the number.

A checker is a function of the answer that raises NotYet with a sentence for the student. Those of
the course are in exercises.py."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinyprop as tp


class NotYet(Exception):
    """What is wrong with an answer, in plain words."""


@dataclass(frozen=True)
class Exercise:
    checker: Callable[[Any], None]
    hints: tuple[str, ...]


EXERCISES: dict[str, Exercise] = {}
_hints_given: dict[str, int] = {}
_guesses: dict[str, float | None] = {}
_revealed: set[str] = set()


def exercise(number: str, *hints: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register the checker of an exercise, and its hints, from the faintest to the clearest."""

    def register(checker: Callable[[Any], None]) -> Callable[[Any], None]:
        EXERCISES[number] = Exercise(checker, hints)
        return checker

    return register


def expect(holds: Any, otherwise: str) -> None:
    """Tell the student what is wrong unless the condition holds."""
    if not holds:
        raise NotYet(otherwise)


def numbers(got: Any, shape: tuple[int, ...] | None = None) -> Any:
    """The answer as a float64 array, of this shape if one is given."""
    try:
        array = np.asarray(got.numpy() if isinstance(got, tp.Tensor) else got, float)
    except (TypeError, ValueError):
        raise NotYet(
            f"a number or an array of numbers was expected, not {type(got).__name__}"
        ) from None
    expect(shape is None or array.shape == shape, f"it has shape {array.shape}, not {shape}")
    expect(np.isfinite(array).all(), "it is not finite: there is an inf or a nan in it")
    return array


def near(got: Any, wanted: Any, relative: float = 1e-6) -> bool:
    """Whether two arrays agree, up to this fraction of the largest number wanted."""
    return bool(
        np.abs(numbers(got, np.shape(wanted)) - wanted).max()
        <= relative * max(np.abs(wanted).max(), 1e-12)
    )


def right(
    got: Any, wanted: Any, otherwise: str, *mistakes: tuple[Any, str], relative: float = 1e-6
) -> None:
    """The answer is what is wanted, or this mistake, or something else."""
    got = numbers(got)
    if got.shape == np.shape(wanted) and near(got, wanted, relative):
        return
    for wrong, why in mistakes:
        expect(got.shape != np.shape(wrong) or not near(got, wrong, relative), why)
    expect(got.shape == np.shape(wanted), f"it has shape {got.shape}, not {np.shape(wanted)}")
    raise NotYet(otherwise)


def pieces(got: Any, count: int, what: str) -> tuple[Any, ...]:
    """The answer as a tuple of so many parts."""
    expect(isinstance(got, (tuple, list)) and len(got) == count, f"return {count} things: {what}")
    expect(all(part is not ... and part is not None for part in got), "fill in all holes")
    return tuple(got)


def verdict(number: str, answer: Any) -> str | None:
    """What is wrong with an answer; None if it is right."""

    def asked(*arguments: Any, **named: Any) -> Any:
        """The student's function. Arrays are copied, so that it can do no harm."""
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
        try:
            result = answer(*copies, **named)
        except NotYet:
            raise
        except RecursionError:
            raise NotYet(
                "it calls itself too often: Python allows about 1,000 nested calls"
            ) from None
        except Exception as error:
            raise NotYet(f"it stops with {type(error).__name__}: {error}") from error
        return (
            expect(
                result is not None and result is not ..., "it returns nothing yet: fill in the hole"
            )
            or result
        )

    if answer is None or answer is ...:
        return "there is no answer yet: fill in the hole"
    try:
        EXERCISES[number].checker(
            asked if callable(answer) and not isinstance(answer, type) else answer
        )
    except NotYet as wrong:
        return str(wrong)
    return None


def check(number: str, answer: Any) -> None:
    """Say whether the answer to an exercise is right, or what is wrong with it."""
    wrong = verdict(number, answer)
    print(
        f"{number} is right"
        if wrong is None
        else f'{number} not yet: {wrong}. For help: hint("{number}")'
    )


def hint(number: str) -> None:
    """Print the next hint; after the last one, say where the solution is."""
    hints, given = EXERCISES[number].hints, _hints_given.get(number, 0)
    if given < len(hints):
        print(f"hint {given + 1} of {len(hints)}: {hints[given]}")
    else:
        print("no more hints; the solution, with its derivation, is in the solutions directory")
    _hints_given[number] = given + 1


def predict(question: str, guess: float | None = None) -> None:
    """Note a guess, a number, until `reveal` shows the answer. After that, guesses are no longer
    taken."""
    if question in _revealed:
        print(f"{question}: you have seen the answer; your guess stays {_guesses[question]}")
        return
    _guesses[question] = guess
    answer = "what do you think? Put a number behind the question"
    if guess is not None:
        answer = f"{guess:g}"
    print(f"{question}: {answer}")


def reveal(question: str, answer: float) -> None:
    """Show the answer beside the guess."""
    guess = _guesses.get(question)
    _revealed.add(question)
    if guess is None:
        print(f"{question}: {answer:.3g}")
        return
    ratio = guess / answer if answer else float("inf")
    far = (
        f"{ratio:.2g} times the answer"
        if ratio > 0 and ratio != float("inf")
        else f"off by {guess - answer:+.2g}"
    )
    print(f"{question}: {answer:.3g}; you said {guess:g}, {far}")
