"""Runs side by side, each in a process on one thread, so the results do not depend on how many there are."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path

from threadpoolctl import threadpool_limits

from ..train import Config, keep_freed_memory
from .ledger import Ledger, compute, run_name


def compute_all(configs: Sequence[Config], ledger: Ledger, runs: Path, root: Path | None, jobs: int) -> bool:
    """Compute these runs, seed by seed, the longest first; False after Ctrl-C, when everything done so far is saved."""
    order = sorted(configs, key=lambda c: (c.seed, c.batch_size, -c.epochs * c.width))
    pool, done = ProcessPoolExecutor(min(jobs, len(order)), get_context("spawn"), _start), False
    try:
        waiting = {pool.submit(compute, config, ledger, runs, root): config for config in order}
        for i, future in enumerate(as_completed(waiting), start=1):
            future.result()  # raises the error of a worker here
            print(f"{i}/{len(order)} {run_name(waiting[future])}", flush=True)
        done = True
    except KeyboardInterrupt:
        pass
    finally:  # after an error, too
        pool.shutdown(wait=done, cancel_futures=True)
        while not done and (children := active_children()):
            for pid in [child.pid for child in children if child.pid]:  # again and again: a run may just be starting
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
            time.sleep(0.2)
    return done


def _start() -> None:
    """Set up a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only a run in progress listens to it, and saves
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  the bars of single runs; errors go to the parent as they are
    threadpool_limits(1, user_api="blas")
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Not even a parent that was killed leaves a worker behind; its run resumes from the last checkpoint."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
