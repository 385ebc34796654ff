"""Threads that share a batch: sums over its parts, errors, and the threads of BLAS."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import tinyprop as tp
from tinyprop import functional as F
from tinyprop.engine.threads import (
    Workers,
    add_up,
    allow,
    allowed,
    blas_threads,
    is_first_part,
    over_batch,
    spread,
)


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


@pytest.mark.parametrize("samples", [1, 2, 5, 9, 200])
def test_every_part_gets_the_sum_of_all(samples):
    def work(where):
        mine = np.arange(samples)[where]
        sums = [int(add_up(mine.sum())) for _ in range(20)]
        return [(sums, is_first_part(), len(mine))]

    parts = Workers.of(3).map(work, samples, lambda a, b: a + b, together=True)
    assert sum(length for *_, length in parts) == samples
    assert [first for _, first, _ in parts] == [True] + [False] * (len(parts) - 1)
    assert {total for sums, *_ in parts for total in sums} == {samples * (samples - 1) // 2}


def test_the_sum_over_the_batch_has_gradients_of_any_order():
    """y = (sum of all)^3 in every part: each of the three parts sends 3 s^2 to everyone, and so
    on."""

    def work(where):
        x = tp.tensor(float(where.start + 1), requires_grad=True)
        out = over_batch(x) ** 3
        (first,) = tp.grad(out, [x], create_graph=True)
        (second,) = tp.grad(first, [x])
        return [(out.item(), first.item(), second.item())]

    total = 6.0
    assert (
        Workers.of(3).map(work, 3, lambda a, b: a + b, together=True)
        == [(total**3, 3 * 3 * total**2, 3 * 3 * 6 * total)] * 3
    )


def test_a_part_that_asks_for_fewer_sums_is_an_error_not_a_hang():
    def work(where):
        return add_up(1) if where.start else 0

    with pytest.raises(RuntimeError, match="fewer sums"):
        Workers.of(2).map(work, 2, lambda a, b: a + b, together=True)


def test_teams_of_several_users_do_not_wait_for_each_other():
    def user(number):
        return Workers.of(2).map(lambda where: add_up(number), 2, lambda a, b: a + b, together=True)

    with ThreadPoolExecutor(8) as users:
        assert list(users.map(user, range(100))) == [4 * number for number in range(100)]


def test_a_network_in_one_piece_takes_as_many_threads_as_it_is_given(rng, monkeypatch):
    """Its products are shared out among them, each with one thread of BLAS; Dropout leaves the
    cores to BLAS."""
    for module in (tp.train.step, tp.parallel.ranks):
        monkeypatch.setattr(module, "cores", lambda: 4)
    seen = []

    class Watch(tp.nn.Module):
        def forward(self, x):
            seen.append((allowed(), now()))
            return x

    net = tp.nn.Sequential(tp.nn.Linear(3, 2), Watch())
    dropout = tp.nn.Sequential(tp.nn.Linear(3, 2), tp.nn.Dropout(0.5), Watch())
    with threadpool_limits(3, user_api="blas"):
        for model, threads in (net, 1), (net, 2), (net, None), (dropout, 1), (dropout, None):
            step = tp.train.TrainingStep(
                model, tp.optim.SGD(model.parameters(), 0.1), F.mse_loss, threads
            )
            step(rng.normal(size=(4, 3)), rng.normal(size=(4, 2)))
    assert seen == [(1, {1}), (2, {1}), (4, {1}), (1, {1}), (1, {3})]


@pytest.mark.parametrize("pieces", [0, 1, 2, 3, 7])
def test_spread_work_is_done_once_where_settings_hold(pieces):
    """no_grad() and np.errstate() hold in the threads, too."""
    seen = []

    def work(where):
        recorded = tp.ones(1, requires_grad=True).exp().requires_grad
        seen.extend((i, recorded, np.geterr()["over"]) for i in range(pieces)[where])

    with allow(3), tp.no_grad(), np.errstate(over="ignore"):
        spread(work, pieces)
    assert sorted(seen) == [(i, False, "ignore") for i in range(pieces)]


def test_spread_work_does_not_spread_again():
    """A share that waited for threads of its own pool might wait forever."""
    seen = []
    with allow(2):
        spread(lambda outer: spread(lambda inner: seen.append((allowed(), outer, inner)), 4), 4)
    assert sorted(map(repr, seen)) == sorted(
        repr((1, slice(a, a + 2), slice(None))) for a in (0, 2)
    )


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_an_error_in_one_share_is_raised_when_all_are_done(failing):
    done = []

    def work(where):
        if where.start == failing:
            raise ZeroDivisionError(f"share {failing}")
        time.sleep(0.05)
        done.append(where.start)

    with allow(3), pytest.raises(ZeroDivisionError, match=f"share {failing}"):
        spread(work, 3)
    assert sorted(done) == [i for i in range(3) if i != failing]
