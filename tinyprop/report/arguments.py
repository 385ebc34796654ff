"""Arguments of the commands: suggestions for mistyped names, and checked numbers."""

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Suggests the nearest name for a mistyped command, choice or option."""

    def error(self, message: str) -> NoReturn:
        import difflib

        wrong_choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message)
        wrong_option = re.search(r"unrecognized arguments: (-[\w-]+)", message)
        if wrong_choice:
            typed = wrong_choice[1]
            known = re.findall(r"[\w.-]+", wrong_choice[2])
        elif wrong_option:
            typed = wrong_option[1]
            known = list(self._option_string_actions)
        else:
            super().error(message)
        nearest = difflib.get_close_matches(typed, known, n=1)
        if nearest:
            message += f"; did you mean {nearest[0]}?"
        super().error(message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options here, where the options of the command are known."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown


def whole_number(low: int) -> Callable[[str], int]:
    """Parse a whole number of at least `low`, which may be written 1e8."""

    def parse(text: str) -> int:
        try:
            value = float(text)
            is_valid = value == int(value) and value >= low
        except (ValueError, OverflowError):  # int() refuses nan and inf
            is_valid = False
        if not is_valid:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {low}")
        return int(value)

    return parse


def checked_by(convert: Callable[[str], Any]) -> Callable[[str], str]:
    """Take a name, or `file.py:name`, that this function can turn into a record."""

    def parse(text: str) -> str:
        try:
            convert(text)
        except (ImportError, LookupError, OSError, TypeError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return parse


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def duration(text: str) -> float:
    """Seconds from 90s, 30m or 2h.

    >>> duration("1.5h")
    5400.0
    """
    seconds = {"s": 1.0, "m": 60.0, "h": 3600.0}
    number, unit = text[:-1], text[-1:]
    if unit not in seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 2h")
    return seconds[unit] * positive(number)
