"""Points side by side, each in a process on one thread, so what comes out does not depend on how many there are."""

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from ..train import Config, keep_freed_memory
from .points import Store, compute

LOOK = 0.5  # seconds between looks at what the workers have done


def compute_all(configs: Sequence[Config], store: Store, root: Path | None, jobs: int) -> bool:
    """Compute the points that are not finished; False after Ctrl-C, when everything done so far is saved."""
    left = [config for config in configs if store.result(config) is None]
    left.sort(key=lambda config: (config.batch_size, -config.epochs))  # the slowest first, so that none is left alone
    if not left:
        return True
    context = get_context("spawn")
    stop = context.Event()
    pool = ProcessPoolExecutor(min(jobs, len(left)), context, _start, (stop,))
    try:
        waiting = {pool.submit(compute, config, store, root): config for config in left}
        finished = 0
        with tqdm(total=sum(c.epochs for c in left), desc="reproduce", unit="epoch", disable=None, leave=False) as bar:
            while waiting:
                for future in wait(waiting, LOOK, FIRST_COMPLETED).done:
                    future.result()  # an error of a worker is ours
                    finished += waiting.pop(future).epochs
                bar.update(finished + sum(map(store.epochs_logged, waiting.values())) - bar.n)
        return True
    except KeyboardInterrupt:
        return False
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


# -- what runs in a worker


def _start(stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a run that is under way hears it and saves; nobody else needs to
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115  the bars of single runs; errors go to the parent as they are
    threadpool_limits(1, user_api="blas")
    keep_freed_memory()
    threading.Thread(target=_stop_when_told, args=(stop,), daemon=True).start()


def _stop_when_told(stop: Any) -> None:
    """Save and stop when the parent says so, or when it is no more."""
    parent = parent_process()
    assert parent is not None
    while not stop.wait(1.0) and parent.is_alive():
        pass
    for _ in range(60):  # again and again: a run may only just be starting
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.0)
    os._exit(1)
