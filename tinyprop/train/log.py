"""The log of a run: log.csv and signals.csv, which the seed decides, and log.jsonl, which also says
how long each epoch took.

A checkpoint knows nothing of the clock, so that a resumed run ends with the same history."""

import json
import math
from pathlib import Path
from typing import Any

from ..report.files import read_regular, write_csv, write_whole
from .display import in_hours

MOST = 1 << 28  # bytes of log.jsonl
Row = dict[str, Any]


class Log:
    """The files of a log, in the directory of a run."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / "log.jsonl"
        self.seconds: dict[int, float] = {}  # that each epoch took

    def elapsed(self, epochs: int) -> float | None:
        """Seconds that the first epochs took, each in the process that finished it; None if that is
        not known of all."""
        numbers = range(1, epochs + 1)
        if not all(epoch in self.seconds for epoch in numbers):
            return None
        return math.fsum(self.seconds[epoch] for epoch in numbers)

    def read(self, epochs: int) -> None:
        """How long the first epochs took, if an earlier process has noted it."""
        try:
            lines = read_regular(self.path, MOST).decode().splitlines()
            rows = [json.loads(line) for line in lines]
            found = {row["epoch"]: float(row["seconds"]) for row in rows if "seconds" in row}
        except (OSError, ValueError, TypeError, KeyError):  # none, or not one of ours
            found = {}
        self.seconds = {epoch: found[epoch] for epoch in found if epoch <= epochs}

    def write(self, history: list[Row], signals: list[Row], durable: bool) -> None:
        """All files anew. A log that is not `durable` may be lost when the power fails: the
        checkpoint has it, too."""
        write_csv(self.folder / "log.csv", history, durable)
        write_csv(self.folder / "signals.csv", signals, durable)
        lines = [json.dumps(row) + "\n" for row in self.timed(history)]
        write_whole(self.path, "".join(lines).encode(), durable)

    def timed(self, history: list[Row]) -> list[Row]:
        """The rows of the history with the seconds that each epoch took, and of all epochs until
        then, as far as they are known."""
        rows = []
        elapsed: float | None = 0.0
        for row in history:
            timed = {name: _finite(value) for name, value in row.items()}
            seconds = self.seconds.get(row["epoch"])
            if seconds is None:
                elapsed = None
            else:
                timed["seconds"] = round(seconds, 3)
                elapsed = None if elapsed is None else elapsed + seconds
            if elapsed is not None:
                timed["elapsed"] = round(elapsed, 3)
            rows.append(timed)
        return rows

    def in_words(self, row: Row, epochs: int) -> str:
        """A line about an epoch, for a terminal of 80 columns."""
        errors = []
        for name in ("train", "validation", "test"):
            if f"{name}_error" in row:
                errors.append(f"{name} {row[f'{name}_error']:.2%}")
        facts = [f"epoch {row['epoch']}/{epochs}: loss {row['train_loss']:.3f}"]
        facts.append(f"error {', '.join(errors)}")
        facts.append(f"{row['images_per_second']:,.0f} images/s")
        elapsed = self.elapsed(row["epoch"])
        if elapsed is not None:
            facts.append(in_hours(elapsed))
        return ", ".join(facts)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    is_number = isinstance(value, float)
    return None if is_number and not math.isfinite(value) else value
