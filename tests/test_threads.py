"""Threads that share a batch: sums over its parts, errors, and the threads of BLAS."""

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import tinyprop as tp
from tinyprop import functional as F
from tinyprop.threads import Workers, add_up, blas_threads, is_first_part, over_batch


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
    """y = (sum of all)^3 in every part: each of the three parts sends 3 s^2 to everyone, and so on."""

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
    from concurrent.futures import ThreadPoolExecutor

    def user(number):
        return Workers.of(2).map(lambda where: add_up(number), 2, lambda a, b: a + b, together=True)

    with ThreadPoolExecutor(8) as users:
        assert list(users.map(user, range(100))) == [4 * number for number in range(100)]


def test_one_thread_means_one_thread_of_blas(rng, monkeypatch):
    """A network in one piece would otherwise take all cores for its products."""
    monkeypatch.setattr(tp.train.step, "cores", lambda: 4)
    seen = []

    class Watch(tp.nn.Module):
        def forward(self, x):
            seen.append(now())
            return x

    net = tp.nn.Sequential(tp.nn.Linear(3, 2), Watch())
    with threadpool_limits(3, user_api="blas"):
        for threads in (1, 2, None):
            step = tp.train.TrainingStep(net, tp.optim.SGD(net.parameters(), 0.1), F.mse_loss, threads)
            step(rng.normal(size=(4, 3)), rng.normal(size=(4, 2)))
    assert seen == [{1}, {2}, {3}]
