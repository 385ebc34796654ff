"""Checkpoints: everything that the rest of a run depends on, in one sealed file.

The arrays are those of a safetensors file; the facts are JSON in its metadata, and one digest
covers every byte. A file is written whole or not at all, so a run that is killed at any moment
leaves the checkpoint before."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from ..engine.arrays import Array, HostArray
from ..engine.errors import StateError, parts_of
from ..engine.loading import same_reference
from ..report.files import read_regular, remove, write_whole
from ..report.saving import decode, encode
from .config import FIXED, Config
from .own import check_same_network

FORMAT = "tinyprop checkpoint 2"
SAVED = 2  # checkpoints that a run leaves
MOST = 1 << 34  # bytes
TYPES: dict[str, Any] = {
    "config": dict,
    "batch": int,
    "loss": float,
    "wrong": int,
    "counted": int,
    "lr": float,
    "schedule": dict,
    "generator": dict,
    "history": list,
    "signals": list,
    "data": str,
    "samples": dict,
    "network": list,
    "versions": dict,
    "threads": int,
    "ranks": int,
    "averaged": int,
}


@dataclass(frozen=True)
class Checkpoint:
    """What was saved: arrays by name, and facts that JSON can hold."""

    path: Path
    arrays: dict[str, HostArray]
    facts: dict[str, Any]

    @property
    def progress(self) -> tuple[int, int]:
        """Epochs, and steps of the next epoch, that were done."""
        return len(self.facts["history"]), self.facts["batch"]

    def arrays_of(self, owner: str) -> dict[str, HostArray]:
        """Those of the model, of the optimizer or of the average, by the names that they have
        there."""
        prefix = f"{owner}."
        return {
            name.removeprefix(prefix): array
            for name, array in self.arrays.items()
            if name.startswith(prefix)
        }


def write(folder: Path, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    """Save a checkpoint, and delete those before the last, except damaged ones, which are left
    alone."""
    content = encode(arrays, {"format": FORMAT, "facts": json.dumps(facts)})
    write_whole(
        folder / f"checkpoint-{len(facts['history']):05d}-{facts['batch']:07d}.safetensors", content
    )
    whole, _ = read_all(folder)
    for old in whole[:-SAVED]:
        remove(old.path)


def paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.safetensors"))


def read_all(folder: Path) -> tuple[list[Checkpoint], list[str]]:
    """The whole checkpoints of a directory, by progress, and a complaint about each of the
    others."""
    whole, complaints = [], []
    for path in paths(folder):
        try:
            whole.append(read(path))
        except StateError as error:
            complaints.append(error.args[0])
    return sorted(whole, key=lambda found: found.progress), complaints


def newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The last checkpoint of a directory that is whole, if it has any, and a complaint about each
    that is not. If none is whole, a StateError."""
    whole, complaints = read_all(folder)
    if complaints and not whole:
        raise StateError(
            f"{folder}, none of whose {len(complaints)} checkpoints can be used ({complaints[-1]})",
            "a run is resumed from a whole checkpoint; nothing was changed",
            "another output directory, or copy a checkpoint back",
        )
    return (whole[-1] if whole else None), complaints


def refuse_other_run(found: Checkpoint, now: Mapping[str, Any]) -> None:
    """Refuse to continue a run with other settings, images or another network; `now` are the facts
    of the run that would continue it."""
    ours, theirs = now["config"], found.facts["config"]
    needs_end = ours["schedule"] == "linear" or ours["average"] or ours["anneal"]
    for name in [*FIXED, "epochs"] if needs_end else FIXED:
        if not same_reference(ours[name], theirs[name]):
            _refuse(found, f"{name} = {ours[name]!r}", f"{name} = {theirs[name]!r}")
    begun = len(found.facts["history"]) + (found.facts["batch"] > 0)
    if ours["epochs"] < begun:
        _refuse(found, f"epochs = {ours['epochs']}", f"epochs >= {begun}")
    if found.facts["data"] != now["data"]:
        digest = found.facts["data"][:8]
        _refuse(found, "other images or labels", f"{theirs['data']} with the digest {digest}")
    check_same_network(now["network"], found.facts["network"], f"the run in {found.path.parent}")


def _refuse(found: Checkpoint, now: str, then: str) -> NoReturn:
    got = f"{now} for the run in {found.path.parent}, which has {then}"
    hint = f"{then}, or another output directory"
    raise StateError(got, "a run is continued as it began", hint)


def last_bits(found: Checkpoint, now: Mapping[str, Any]) -> Iterator[str]:
    """What may change the last bits of a run that is continued, a line each."""
    for name in ("versions", "ranks"):
        here, there = now[name], found.facts[name]
        if here != there:
            yield f"resumed with other {name}, so the last bits may differ: {here}, before {there}"


def read(path: Path) -> Checkpoint:
    """A checkpoint, or a StateError that names what is wrong with it."""
    try:
        arrays, metadata = decode(read_regular(path, MOST, follow=False), path)
        if metadata.get("format") != FORMAT or "sha256" not in metadata:
            raise ValueError("it is not a checkpoint of this version of tinyprop")
        # older ones do not say
        counts = {"ranks": 1, "averaged": 0, "wrong": 0, "counted": 0}
        defaults = {**counts, "samples": {}, "network": []}
        facts = defaults | json.loads(metadata["facts"])
        check(facts)
        # with the defaults of what an older version did not know
        facts["config"] = asdict(Config(**facts["config"]))
    except StateError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        parts = parts_of(error)
        raise StateError(
            f"{path}, which cannot be used ({parts[0] if parts else error})",
            "a checkpoint is whole",
            "the one before is used instead",
        ) from None
    return Checkpoint(path, arrays, facts)


def check(facts: dict[str, Any]) -> None:
    """Refuse facts of wrong names, types or ranges."""
    if facts.keys() != TYPES.keys():
        raise ValueError(f"it has {', '.join(facts)}, and not {', '.join(TYPES)}")
    for name, kind in TYPES.items():
        if not isinstance(facts[name], kind) or isinstance(facts[name], bool):
            raise ValueError(f"its {name} is not of type {kind.__name__}")
    Config(**facts["config"])
    logged, measured = ([row["epoch"] for row in facts[name]] for name in ("history", "signals"))
    if logged != list(range(1, len(logged) + 1)) or not all(
        0 <= epoch <= len(logged) for epoch in measured
    ):
        raise ValueError("its epochs are not numbered from 1")
    counts = (
        facts["batch"] >= 0
        and 0 <= facts["wrong"] <= facts["counted"]
        and facts["averaged"] >= 0
        and facts["threads"] >= 1
        and facts["ranks"] >= 1
    )
    if not (math.isfinite(facts["loss"]) and 0 <= facts["lr"] < math.inf and counts):
        raise ValueError("a number of its state is out of range")
