"""Threads that share blocks of arrays inside kernels, and the threads of BLAS."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import tinyprop as tp
from tinyprop import functional as F
from tinyprop.engine.context import current
from tinyprop.engine.threads import blas_threads, for_each, map_each, thread_limit


def now():
    """The threads of NumPy's BLAS; other packages, imported later, may bring their own."""
    return {
        library["num_threads"]
        for library in threadpool_info()
        if library["user_api"] == "blas" and "numpy" in library["filepath"]
    }


def test_the_lowest_limit_of_blas_counts_until_the_last_one_leaves():
    with threadpool_limits(3, user_api="blas"):
        first, second = blas_threads(2), blas_threads(1)
        first.__enter__()
        assert now() == {2}
        second.__enter__()
        assert now() == {1}
        first.__exit__(None, None, None)
        assert now() == {1}, "the first to leave is not the last"
        second.__exit__(None, None, None)
        assert now() == {3}


def test_any_thread_may_limit_blas():
    def limited():
        with blas_threads(1):
            return now()

    with threadpool_limits(3, user_api="blas"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(limited).result() == {1}
        assert now() == {3}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("blocks", [0, 1, 2, 3, 7])
def test_every_block_is_done_once_where_settings_hold(threads, blocks):
    """no_grad() and np.errstate() hold in the other threads, too."""
    seen = []

    def work(block):
        recorded = tp.ones(1, requires_grad=True).exp().requires_grad
        seen.append((block, recorded, np.geterr()["over"]))

    with thread_limit(threads), tp.no_grad(), np.errstate(over="ignore"):
        for_each(work, range(blocks))
    assert sorted(seen) == [(i, False, "ignore") for i in range(blocks)]


def test_several_threads_take_part():
    """A block that waits for another thread is not waited for by the others."""
    met = threading.Barrier(3, timeout=10)
    with thread_limit(3):
        for_each(lambda block: met.wait(), range(3))


def test_results_are_in_the_order_of_the_blocks():
    def work(block):
        time.sleep(0.01 * (3 - block % 3))
        return block * block

    with thread_limit(3):
        assert map_each(work, range(9)) == [i * i for i in range(9)]


def test_blocks_are_not_shared_again():
    seen = []

    def outer(block):
        for_each(lambda inner: seen.append((current().thread_limit, block, inner)), range(4))

    with thread_limit(2):
        for_each(outer, range(2))
        assert current().thread_limit == 2
    assert sorted(seen) == [(1, i, j) for i in range(2) for j in range(4)]


@pytest.mark.parametrize("failing", [(0,), (1,), (5,), (2, 3)])
def test_the_error_of_the_first_failing_block_is_raised_when_all_have_stopped(failing):
    running = []

    def work(block):
        running.append(block)
        time.sleep(0.01)
        running.remove(block)
        if block in failing:
            raise ZeroDivisionError(f"block {block}")

    with thread_limit(3), pytest.raises(ZeroDivisionError, match=f"block {failing[0]}"):
        for_each(work, range(6))
    assert running == []


def test_many_users_at_once_get_all_their_blocks_done():
    def user(number):
        found = []
        with thread_limit(3):
            for _ in range(20):
                for_each(found.append, range(5))
        return sorted(found) == sorted(list(range(5)) * 20)

    with ThreadPoolExecutor(8) as users:
        assert all(users.map(user, range(40)))


def test_a_step_gives_kernels_its_threads_and_blas_one(rng, monkeypatch):
    for module in (tp.train.step, tp.parallel.ranks):
        monkeypatch.setattr(module, "cores", lambda: 4)
    seen = []

    class Watch(tp.nn.Module):
        def forward(self, x):
            seen.append((current().thread_limit, now()))
            return x

    net = tp.nn.Sequential(tp.nn.Linear(3, 2), tp.nn.Dropout(0.5), Watch())
    with threadpool_limits(3, user_api="blas"):
        for threads in (1, 2, None):
            step = tp.train.TrainingStep(
                net, tp.optim.SGD(net.parameters(), 0.1), F.mse_loss, threads
            )
            step(rng.normal(size=(4, 3)), rng.normal(size=(4, 2)))
    assert seen == [(1, {1}), (2, {1}), (4, {1})]
