"""How busy the machine is. Times that a busy machine measured are not published."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MOST = 0.2  # processes that want to run, on average over the last minute


def load_average() -> float | None:
    """Over the last minute; None where the system does not tell."""
    if not hasattr(os, "getloadavg"):
        return None
    return os.getloadavg()[0]


def load_words(load: float | None) -> str:
    """For the end of a sentence about how something was measured."""
    return "" if load is None else f"; load of the machine before: {load:.2f}"


def require_idle(load: float | None) -> None:
    if load is not None and load > MOST:
        raise ValueError(
            f"nothing was published, because the load average is {load:.2f}, above {MOST}; wait "
            "until the machine is idle"
        )


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
