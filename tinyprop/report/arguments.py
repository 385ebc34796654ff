"""Arguments of the commands: suggestions for mistyped names, checked numbers and places."""

import argparse
import os
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

FIGURES = (".png", ".svg", ".pdf", ".jpg", ".webp")


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage, which may fill the screen. Suggests the
    nearest name for a mistyped command, choice or option."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {self._with_suggestion(message)}\nSee {self.prog} --help\n")

    def _with_suggestion(self, message: str) -> str:
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
            return message
        nearest = difflib.get_close_matches(typed, known, n=1)
        return f"{message}; did you mean {nearest[0]}?" if nearest else message

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


def output_directory(text: str) -> Path:
    """A directory that can be written to, or made; so that we need not compute to find out."""
    path = Path(text)
    here = path.absolute()
    while not os.path.lexists(here):
        here = here.parent
    if not here.is_dir():
        raise argparse.ArgumentTypeError(f"{here} is not a directory")
    try:  # permissions do not tell, of /proc for example
        with TemporaryFile(dir=here):
            pass
    except OSError as error:
        reason = error.strerror or error
        message = f"the directory {here} cannot be written to ({reason})"
        raise argparse.ArgumentTypeError(message) from error
    return path


def output_file(text: str) -> Path:
    """A file that can be written."""
    path = Path(text)
    if os.path.lexists(path) and (path.is_symlink() or not path.is_file()):
        message = f"{path} is not a regular file, and will not be replaced"
        raise argparse.ArgumentTypeError(message)
    output_directory(str(path.absolute().parent))
    return path


def output_figure(text: str) -> Path:
    """A file that a figure can be written to.

    >>> output_figure("first.png").name
    'first.png'
    """
    if Path(text).suffix not in FIGURES:
        endings = ", ".join(FIGURES)
        raise argparse.ArgumentTypeError(f"{text!r} does not end in one of {endings}")
    return output_file(text)
