"""Runs side by side, each in a process on one thread, so the results do not depend on how many there are."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from ..train import Config, keep_freed_memory
from .ledger import Ledger, compute, run_name


def compute_all(configs: Sequence[Config], ledger: Ledger, runs: Path, root: Path | None, jobs: int) -> bool:
    """Compute these runs, seed by seed, the longest first; False after Ctrl-C, when everything done so far is saved."""
    if not configs:
        return True
    order = sorted(configs, key=lambda c: (c.seed, c.batch_size, -c.epochs * c.width))
    context = get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(min(jobs, len(order)), context, _start, (stop,))
    try:
        waiting = {pool.submit(compute, config, ledger, runs, root): config for config in order}
        for i, future in enumerate(as_completed(waiting), start=1):
            future.result()  # raises the error of a worker here
            print(f"{i}/{len(order)} {run_name(waiting[future])}", flush=True)
        return True
    except KeyboardInterrupt:
        return False
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


# -- in a worker


def _start(stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only a run in progress listens to it, and saves
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  the bars of single runs; errors go to the parent as they are
    threadpool_limits(1, user_api="blas")
    keep_freed_memory()
    threading.Thread(target=_stop_with_parent, args=(stop,), daemon=True).start()


def _stop_with_parent(stop: Any) -> None:
    """Save and stop when the parent says so, or when it is gone."""
    parent = parent_process()
    assert parent is not None
    while not stop.wait(1.0) and parent.is_alive():
        pass
    for _ in range(60):  # again and again: a run may only just be starting
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
    os._exit(1)
