"""`tinyprop check`: is everything in the directory of a run as it was written?"""

import argparse
import hashlib
import json
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import StateError
from ..files import csv_text, read_regular, write_whole
from ..saving import decode
from . import checkpoint
from .config import FIXED, Config

SUMS = "SHA256SUMS"  # of a finished run; `sha256sum -c SHA256SUMS` checks them, too
MOST = 1 << 32  # bytes of a log or a figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="output directory of `tinyprop train`")
    parser.epilog = "Prints one line per finding. The exit status is 0 if there is none, 1 otherwise."


def run(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    found = list(audit(options.run_directory))
    print("\n".join(found) or f"{options.run_directory}: every file is as it was written")
    return 1 if found else 0


def audit(folder: Path) -> Iterator[str]:
    """What is wrong with the files of a run, one line each."""
    whole, complaints = checkpoint.read_all(folder)
    yield from complaints
    if not whole:
        yield f"{folder}: no checkpoint that is whole"
        return
    facts = whole[-1].facts
    for name, rows in (("log.csv", facts["history"]), ("signals.csv", facts["signals"])):
        yield from log_problems(folder / name, rows)
    yield from config_problems(folder / "config.json", facts)
    if (folder / SUMS).exists():
        yield from sum_problems(folder)
    elif len(facts["history"]) == facts["config"]["epochs"] and (folder / "model.safetensors").exists():
        yield f"{folder / SUMS}: missing, so the figures cannot be checked"
    if (folder / "model.safetensors").exists():
        yield from model_problems(folder / "model.safetensors")


def log_problems(path: Path, rows: list[dict[str, Any]]) -> Iterator[str]:
    """A log has the rows of the newest checkpoint; those of the last epoch may not be written yet."""
    before = [row for row in rows if row["epoch"] < rows[-1]["epoch"]]
    if not before and not path.exists():
        return
    try:
        if read_regular(path, MOST) not in [csv_text(some).encode() for some in (rows, before) if some]:
            yield f"{path}: not what the newest checkpoint has"
    except OSError as error:
        yield f"{path}: cannot be read ({error})"


def config_problems(path: Path, facts: dict[str, Any]) -> Iterator[str]:
    try:
        stated = json.loads(read_regular(path, MOST))
        config = Config(**{f.name: stated[f.name] for f in fields(Config)})
        if any(getattr(config, name) != facts["config"][name] for name in FIXED):
            yield f"{path}: not the settings of the newest checkpoint"
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield f"{path}: cannot be read ({error})"


def model_problems(path: Path) -> Iterator[str]:
    try:
        _, metadata = decode(read_regular(path, checkpoint.MOST), path)
        if "sha256" not in metadata:
            yield f"{path}: has no digest"
    except (OSError, StateError) as error:
        yield error.args[0] if isinstance(error, StateError) else f"{path}: cannot be read ({error})"


def write_sums(folder: Path) -> None:
    """The digests of all files of a finished run."""
    names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    lines = [f"{_sum(folder / name)}  {name}\n" for name in names if name != SUMS]
    write_whole(folder / SUMS, "".join(lines).encode())


def sum_problems(folder: Path) -> Iterator[str]:
    try:
        lines = read_regular(folder / SUMS, MOST).decode().split("\n")
    except (OSError, ValueError) as error:
        yield f"{folder / SUMS}: cannot be read ({error})"
        return
    for line in filter(None, lines):
        stated, _, name = line.partition("  ")
        try:
            if not name or Path(name).name != name or _sum(folder / name) != stated:
                yield f"{folder / name}: not the file whose digest is in {SUMS}"
        except OSError as error:
            yield f"{folder / name}: cannot be read ({error})"


def _sum(path: Path) -> str:
    return hashlib.sha256(read_regular(path, checkpoint.MOST)).hexdigest()
