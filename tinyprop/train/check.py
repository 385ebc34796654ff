"""`tinyprop check`: is everything in the directory of a run as it was written?"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..engine.errors import StateError
from ..engine.loading import same_reference
from ..report.files import csv_text, read_regular, write_whole
from ..report.saving import decode
from . import checkpoint
from .config import FIXED, Config

SUMS = "SHA256SUMS"  # of a finished run; `sha256sum -c SHA256SUMS` checks them, too


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run_directory", type=Path, metavar="RUN", help="output directory of `tinyprop train`"
    )
    parser.epilog = (
        "Prints one line per finding. The exit status is 0 if there is none, 1 otherwise."
    )


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
        # the last epoch may not be written yet
        before = [row for row in rows if row["epoch"] < rows[-1]["epoch"]]
        if before or (folder / name).exists():
            allowed = [csv_text(some).encode() for some in (rows, before) if some]
            yield from problem(
                folder / name, allowed.__contains__, "not what the newest checkpoint has"
            )
    yield from problem(
        folder / "config.json",
        lambda content: is_config(content, facts["config"]),
        "other settings",
    )
    if (folder / SUMS).is_file():
        yield from sum_problems(folder)
    elif (
        len(facts["history"]) == facts["config"]["epochs"]
        and (folder / "model.safetensors").exists()
    ):
        yield f"{folder / SUMS}: missing, so the figures cannot be checked"
    if (model := folder / "model.safetensors").exists():
        yield from problem(
            model, lambda content: "sha256" in decode(content, model)[1], "has no digest"
        )


def problem(path: Path, fine: Callable[[bytes], bool], otherwise: str) -> Iterator[str]:
    """A line about a file that cannot be read, or is not fine."""
    try:
        if not fine(read_regular(path, checkpoint.MOST)):
            yield f"{path}: {otherwise}"
    except StateError as error:
        yield error.args[0]
    except (OSError, ValueError, TypeError, KeyError) as error:
        yield f"{path}: cannot be read ({error})"


def is_config(content: bytes, settings: dict[str, Any]) -> bool:
    """Whether a file has these settings, apart from what a resumed run may change."""
    stated = json.loads(content)
    config = Config(**{f.name: stated.get(f.name, f.default) for f in fields(Config)})
    return all(same_reference(getattr(config, name), settings[name]) for name in FIXED)


def write_sums(folder: Path) -> None:
    """The digests of all files of a finished run."""
    names = sorted(
        p.name
        for p in folder.iterdir()
        if p.is_file() and p.name != SUMS and not p.name.startswith(".")
    )
    lines = [
        f"{sha256(read_regular(folder / name, checkpoint.MOST)).hexdigest()}  {name}\n"
        for name in names
    ]
    write_whole(folder / SUMS, "".join(lines).encode())


def sum_problems(folder: Path) -> Iterator[str]:
    lines = read_regular(folder / SUMS, checkpoint.MOST).decode(errors="replace").split("\n")
    for stated, _, name in (line.partition("  ") for line in lines if line):
        path = folder / name if Path(name).name == name else folder  # nothing elsewhere is read
        yield from problem(
            path, partial(has_digest, stated), f"not the file whose digest is in {SUMS}"
        )


def has_digest(stated: str, content: bytes) -> bool:
    return sha256(content).hexdigest() == stated
