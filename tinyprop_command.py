"""Where the command `tinyprop` starts. Beside the package, so that nothing is imported yet: Ctrl-C
ends the command quietly, also while Python imports tinyprop and NumPy. `python -m tinyprop` imports
this first, too."""

import os
import signal
import sys


def main() -> int:
    """Run the command line; see `tinyprop.cli.main`."""
    stop_quietly()
    from tinyprop import cli

    return cli.main(loaded=stop_as_usual)


def stop_quietly() -> None:
    """From now on, Ctrl-C ends this process with one line; not where it is ignored, as in the
    background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stop)


def stop_as_usual() -> None:
    """From now on, Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _stop(*_: object) -> None:
    """Leave at once: an exception may be lost in the middle of an import."""
    sys.stdout.flush()
    os.write(2, b"\ntinyprop: stopped\n")
    os._exit(130)
