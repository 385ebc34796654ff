"""Sums over a batch that several processes share; here, threads stand for them."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import tinyprop as tp
from tinyprop.engine.batch import (
    add_up,
    in_batch,
    is_first_part,
    over_batch,
    shares_batch,
    sharing,
)


class Shared:
    """The parts of a batch: each waits for the numbers of all, and adds them in order."""

    def __init__(self, size):
        self.numbers = [None] * size
        self.barrier = threading.Barrier(size, timeout=10)

    def add_up(self, place, numbers):
        self.numbers[place] = numbers
        self.barrier.wait()
        total = sum(self.numbers[1:], self.numbers[0])
        self.barrier.wait()
        return total


class OnePart:
    def __init__(self, shared, place):
        self.shared, self.place, self.first = shared, place, place == 0

    def add_up(self, numbers):
        return self.shared.add_up(self.place, numbers)

    def in_batch(self, shape):
        return (3 * shape[0], *shape[1:]), slice(self.place * shape[0], (self.place + 1) * shape[0])


def on_parts(work, size=3):
    """The results of work(place) in as many threads, each with a part of the batch."""
    shared = Shared(size)

    def run(place):
        with sharing(OnePart(shared, place)):
            return work(place)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, range(size)))


def test_every_part_gets_the_sum_of_all():
    found = on_parts(lambda place: (add_up(place + 1), is_first_part(), shares_batch()))
    assert found == [(6, True, True), (6, False, True), (6, False, True)]


def test_nobody_shares_a_batch_by_default():
    assert (add_up(2.5), is_first_part(), shares_batch()) == (2.5, True, False)
    assert in_batch((4, 3)) == ((4, 3), ...)


def test_the_place_of_a_part_in_the_batch():
    assert on_parts(lambda place: in_batch((2, 5)))[1] == ((6, 5), slice(2, 4))


def test_the_sum_over_the_batch_has_gradients_of_any_order():
    """y = (sum of all)^3 in every part: each of the three parts sends 3 s^2 to everyone, and so
    on."""

    def work(place):
        x = tp.tensor(float(place + 1), requires_grad=True)
        out = over_batch(x) ** 3
        (first,) = tp.grad(out, [x], create_graph=True)
        (second,) = tp.grad(first, [x])
        return out.item(), first.item(), second.item()

    total = 6.0
    assert on_parts(work) == [(total**3, 3 * 3 * total**2, 3 * 3 * 6 * total)] * 3


@pytest.mark.parametrize("norm", ["batch"])
def test_batch_norm_of_parts_is_that_of_the_whole(norm, rng):
    x = rng.standard_normal((9, 4))

    def outputs(place):
        layer = tp.nn.BatchNorm(4).to(dtype="float64")
        return layer(tp.tensor(x[3 * place : 3 * place + 3])).numpy(), layer.running_var.numpy()

    layer = tp.nn.BatchNorm(4).to(dtype="float64")
    whole = layer(tp.tensor(x)).numpy()
    for place, (part, running) in enumerate(on_parts(outputs)):
        assert abs(part - whole[3 * place : 3 * place + 3]).max() < 1e-12
        assert abs(running - layer.running_var.numpy()).max() < 1e-12
