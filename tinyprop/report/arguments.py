"""Arguments of the commands: suggestions for mistyped names, and checked numbers."""

import argparse
import re
from collections.abc import Callable
from typing import Any, NoReturn


class Parser(argparse.ArgumentParser):
    """Suggests the nearest name for a mistyped command, choice or option."""

    def error(self, message: str) -> NoReturn:
        import difflib

        known = list(self._option_string_actions)
        if wrong := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            typed, known = wrong[1], re.findall(r"[\w.-]+", wrong[2])
        elif wrong := re.search(r"unrecognized arguments: (-[\w-]+)", message):
            typed = wrong[1]
        else:
            super().error(message)
        near = difflib.get_close_matches(typed, known, n=1)
        super().error(message + (f"; did you mean {near[0]}?" if near else ""))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse unknown options here, where the options of the command are known."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return found, rest


def whole_number(low: int) -> Callable[[str], int]:
    """Parse a whole number of at least `low`, which may be written 1e8."""

    def parse(text: str) -> int:
        try:
            value = float(text)
            if value != int(value) or value < low:
                raise ValueError
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number of at least {low}"
            ) from None
        return int(value)

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
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    if text[-1:] not in units:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m or 2h")
    return units[text[-1]] * positive(text[:-1])
