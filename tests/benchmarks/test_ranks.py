"""The cost model of a step on many workers, on made-up measurements."""

import pytest

from benchmarks import ranks
from benchmarks.ranks import (
    ETHERNET,
    Network,
    Step,
    crossover,
    fitted,
    machine_network,
    page,
    simulated,
    sums,
)

FIXED, IMAGE, UPDATE = 0.004, 0.002, 0.001
MEMORY = 1e10


def measured(size=400_000):
    times = {"one thread": [0.105] * 3, "two threads": [0.055] * 3, "two ranks": [0.06] * 3}
    shares = {str(share): [FIXED + IMAGE * share + UPDATE] * 3 for share in ranks.SHARES}
    return {"times": times, "shares": shares, "updates": [UPDATE], "bytes": size}


def test_a_line_through_the_shares_gives_the_costs():
    step = fitted(1.0, measured())
    assert step.fixed == pytest.approx(FIXED)
    assert step.image == pytest.approx(IMAGE)
    assert step.update == UPDATE
    assert step.computing(3, 50) == pytest.approx(FIXED + 17 * IMAGE)


def test_latency_and_bandwidth_are_recovered():
    """Two ranks exchange half of the buffer, twice."""
    truth = Network("", 1e-5, 2e9)
    found = {str(n): [sums(truth, float("inf"), 4 * n, 2)] for n in ranks.SIZES}
    network = machine_network(found)
    assert network.latency == pytest.approx(truth.latency)
    assert network.bandwidth == pytest.approx(truth.bandwidth)


def test_sums_cost_nothing_alone_and_more_with_more_workers():
    costs = [sums(ETHERNET, MEMORY, 10**6, n) for n in range(1, 300)]
    assert costs[0] == 0.0
    assert costs == sorted(costs)
    assert costs[-1] < 2 * 299 * ETHERNET.latency + 2 * 10**6 / ETHERNET.bandwidth + 10**6 / MEMORY


def test_the_slowest_worker_decides():
    steady, shaky = (
        Step(1.0, FIXED, IMAGE, UPDATE, 10**6, jitter) for jitter in ([1.0], [1.0, 2.0])
    )
    assert simulated(steady, ETHERNET, MEMORY, 1, 50) == pytest.approx(FIXED + 50 * IMAGE + UPDATE)
    slow = simulated(shaky, ETHERNET, MEMORY, 8, 50) - sums(ETHERNET, MEMORY, 10**6, 8) - UPDATE
    assert slow == pytest.approx((2.0 - 0.5**8) * steady.computing(8, 50), rel=0.01)


def test_the_crossover_is_the_first_number_of_workers_whose_sums_take_longer():
    step = Step(1.0, FIXED, IMAGE, UPDATE, 10**6, [1.0])
    n = crossover(step, ETHERNET, MEMORY, lambda n: 50)
    assert sums(ETHERNET, MEMORY, 10**6, n) > step.computing(n, 50) + UPDATE
    assert sums(ETHERNET, MEMORY, 10**6, n - 1) <= step.computing(n - 1, 50) + UPDATE
    assert crossover(step, ETHERNET, MEMORY, lambda n: 5000 * n) is None


def test_the_page_marks_what_was_not_run():
    found = {
        "steps": {str(width): measured() for width in ranks.WIDTHS},
        "sums": {str(n): [sums(ETHERNET, MEMORY, 4 * n, 2)] for n in ranks.SIZES},
        "memory": MEMORY,
        "machine": "an abacus",
        "load": 0.25,
    }
    text = page(found, 1)
    assert "an abacus" in text
    assert "| 0.25 | 105 | 55 | 60 | 1.09 |" in text
    assert "Nothing below was run." in text
    assert "| 256 |" in text
