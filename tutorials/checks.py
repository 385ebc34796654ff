"""Exercises that check your answer. `check("1.2", answer)` says whether it is right or what is
wrong with it; `hint("1.2")` gives one more hint each time; `predict` takes a guess before `reveal`
shows the number.

A checker is a function of the answer that raises NotYet with a sentence for the student. Those of
the course are in exercises.py. Functions are checked twice: with the numbers of the lesson, and
with fresh ones, which no answer can know."""

from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tinyprop as tp


class NotYet(Exception):
    """What is wrong with an answer, in plain words."""


class Exercise(NamedTuple):  # whose methods do not lead back to this module, as a dataclass's do
    checker: Callable[[Any], None]
    hints: tuple[str, ...]
    function: bool  # whether the answer is a function
    again: bool  # whether it is checked with fresh numbers, too


SOLUTIONS = Path(__file__).with_name("solutions")
EXERCISES: dict[str, Exercise] = {}
fresh: ContextVar[np.random.Generator | None] = ContextVar("fresh", default=None)
# called with what a student did, the name of the exercise or question, and what came of it: a page
# keeps a record of it
listeners: list[Callable[[str, str, Any], None]] = []
locked = False  # whether an answer is shown only to those who have guessed, as in a page
_hints_given: dict[str, int] = {}
_guesses: dict[str, float | None] = {}
_revealed: set[str] = set()


def exercise(
    number: str, *hints: str, function: bool = True, again: bool | None = None
) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Register the checker of an exercise, and its hints, from the faintest to the clearest.
    Functions are checked again, with fresh numbers; `again` says whether another answer is, too."""

    def register(checker: Callable[[Any], None]) -> Callable[[Any], None]:
        twice = function if again is None else again
        EXERCISES[number] = Exercise(checker, hints, function, twice)
        return checker

    return register


def expect(holds: Any, otherwise: str) -> None:
    """Tell the student what is wrong unless the condition holds."""
    if not holds:
        raise NotYet(otherwise)


def numbers(got: Any, shape: tuple[int, ...] | None = None) -> Any:
    """The answer as a float64 array, of this shape if one is given."""
    try:
        array = np.asarray(got.numpy() if isinstance(got, tp.Tensor) else got)
        expect(not np.iscomplexobj(array), "it is complex: a real number was expected")
        array = array.astype(float)
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


def draws(*shape: int, seed: int = 0) -> np.ndarray:
    """Standard normal numbers: those of the lesson, or fresh ones."""
    random = fresh.get()
    if random is None:
        random = np.random.default_rng(seed)
    return random.standard_normal(shape)


def unknown(number: str) -> str:
    """What to say if there is no such exercise."""
    lesson = str(number).split(".")[0]
    known = [name for name in EXERCISES if name.split(".")[0] == lesson]
    of_lesson = f"lesson {lesson} has {', '.join(known)}" if known else "see the lesson's text"
    return f"there is no exercise {number}; {of_lesson}"


def student_function(answer: Callable[..., Any]) -> Callable[..., Any]:
    """The student's function. Arrays are copied, so that it can do no harm, and what stops it is
    told in words."""

    def asked(*arguments: Any, **named: Any) -> Any:
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
        is_hole = result is None or result is ...
        expect(not is_hole, "it returns nothing yet: fill in the hole")
        return result

    return asked


def complaint(
    checker: Callable[[Any], None], answer: Any, random: np.random.Generator | None
) -> str | None:
    """What a checker says of an answer, with the numbers of the lesson or with fresh ones."""
    token = fresh.set(random)
    try:
        checker(answer)
    except NotYet as wrong:
        return str(wrong)
    except Exception as error:  # an answer of a form that nobody thought of
        return f"the check cannot use this answer: {type(error).__name__}: {error}"
    finally:
        fresh.reset(token)
    return None


def verdict(number: str, answer: Any, seed: int | None = None) -> str | None:
    """What is wrong with an answer; None if it is right. A function has to be right for the numbers
    of the lesson and for others, which this seed draws; without one they are new each time."""
    if number not in EXERCISES:
        return unknown(number)
    if answer is None or answer is ...:
        return "there is no answer yet: fill in the hole"
    asked = EXERCISES[number]
    if asked.function:
        if not callable(answer):
            kind = type(answer).__name__
            return f"the answer is the function, not {kind}: pass its name, without ()"
        answer = student_function(answer)
    wrong = complaint(asked.checker, answer, None)
    if wrong is not None or not asked.again:
        return wrong
    entropy = None if seed is None else [1, seed]  # a lesson's numbers have a plain seed
    wrong = complaint(asked.checker, answer, np.random.default_rng(entropy))
    if wrong is not None:
        return f"it is right for the numbers of the lesson, but not for others: {wrong}"
    return None


def tell(kind: str, name: str, outcome: Any) -> None:
    """Let all listeners know."""
    for listener in listeners:
        listener(kind, name, outcome)


def check(number: str, answer: Any) -> None:
    """Say whether the answer to an exercise is right, or what is wrong with it."""
    if number not in EXERCISES:
        print(unknown(number))
        return
    wrong = verdict(number, answer)
    tell("check", number, wrong)
    print(
        f"{number} is right"
        if wrong is None
        else f'{number} not yet: {wrong}. For help: hint("{number}")'
    )


def hint(number: str) -> None:
    """Print the next hint; after the last one, say where the solution is, if it is here."""
    if number not in EXERCISES:
        print(unknown(number))
        return
    hints, given = EXERCISES[number].hints, _hints_given.get(number, 0)
    if given < len(hints):
        print(f"hint {given + 1} of {len(hints)}: {hints[given]}")
    elif SOLUTIONS.is_dir():
        print("no more hints; the solution, with its derivation, is in the solutions directory")
    else:
        print("no more hints")
    _hints_given[number] = given + 1
    tell("hint", number, given + 1)


def predict(question: str, guess: float | None = None) -> None:
    """Note a guess, a number, until `reveal` shows the answer. After that, guesses are no longer
    taken. Without a number, an earlier guess is kept."""
    if question in _revealed:
        print(f"{question}: you have seen the answer; your guess stays {_guesses[question]}")
        return
    if guess is None:
        guess = _guesses.get(question)
    _guesses[question] = guess
    tell("predict", question, guess)
    answer = "what do you think? Put a number after the question"
    if guess is not None:
        answer = f"{guess:g}"
    print(f"{question}: {answer}")


def reveal(question: str, answer: float) -> None:
    """Show the answer beside the guess."""
    guess = _guesses.get(question)
    if locked and guess is None:
        print(f"{question}: guess first")
        return
    _revealed.add(question)
    tell("reveal", question, answer)
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
