"""Where the command `tinyprop` starts. Beside the package, so that nothing is imported yet: Ctrl-C
ends the command quietly, also while Python imports tinyprop and NumPy."""

import os
import signal
import sys
from typing import Any


def main() -> int:
    """Run the command line; see `tinyprop.cli.main`."""
    before = signal.getsignal(signal.SIGINT)
    is_handled = before is signal.default_int_handler  # and not ignored, as in the background
    if is_handled:
        signal.signal(signal.SIGINT, _stop)
    from tinyprop import cli

    def restore() -> None:
        if is_handled:
            signal.signal(signal.SIGINT, before)

    return cli.main(loaded=restore)


def _stop(*_: Any) -> None:
    """Leave at once: an exception may be lost in the middle of an import."""
    sys.stdout.flush()
    os.write(2, b"\ntinyprop: stopped\n")
    os._exit(130)
