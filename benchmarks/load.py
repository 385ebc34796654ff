"""How busy other programs keep the machine. Rounds that they disturb are not counted."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST = 0.15  # of a core, that other programs may use in a round that counts
PROC = Path("/proc")


class Watch:
    """Tells how much of a core other programs have used since it was made."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.before = seconds_of_others()

    def others(self) -> float | None:
        """As a fraction of one core; None where the system does not tell."""
        after = seconds_of_others()
        if after is None or self.before is None:
            return None
        passed = time.perf_counter() - self.start
        return (after - self.before) / passed


def is_quiet(others: float | None) -> bool:
    return others is None or others < MOST


def seconds_of_others() -> float | None:
    """That all processors have worked, or were taken from this machine, since it was started, minus
    what this process and those that it started have used."""
    if not (PROC / "stat").exists():
        return None
    words = (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, interrupts, soft_interrupts, stolen = map(int, words[:8])
    busy = user + nice + system + interrupts + soft_interrupts + stolen
    return (busy - own_ticks()) / os.sysconf("SC_CLK_TCK")


def own_ticks() -> int:
    """Of this process and of all below it, those that have ended included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in PROC.glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:  # it has just ended
            continue
        fields = text.rpartition(")")[2].split()  # a name may have spaces
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))  # user, system, and those of ended children
    total = 0
    for pid in ticks:
        ancestor = pid
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        if ancestor == os.getpid():
            total += ticks[pid]
    return total


@contextmanager
def runs_paused() -> Iterator[None]:
    """Let `tinyprop reproduce --pause-file $TINYPROP_PAUSE` wait during the block: while it
    measures, the file exists."""
    name = os.environ.get("TINYPROP_PAUSE")
    if not name:
        yield
        return
    path = Path(name)
    path.touch()
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
