"""The time of each op is its own: neither that of ops inside it, nor that of its gradient."""

import pytest

import tinyprop as tp
from benchmarks import profile
from benchmarks.clock import REST, Clock, watched
from tinyprop.engine.graph import Op


def test_inner_times_are_not_counted_outside():
    moments = iter(range(100))
    clock = Clock(lambda: next(moments))
    with clock.around("Convolve"):
        with clock.around("map_tiles"):
            pass
        with clock.around("map_tiles"):
            pass
    clock.add()
    assert clock.seconds == {"Convolve": 3, "map_tiles": 2, REST: 2}


def test_ops_and_their_gradients_are_watched_and_no_trace_is_left():
    call = Op.__call__
    x = tp.tensor([2.0], requires_grad=True)
    clock = Clock()
    with watched(clock):
        (x * x).sum().backward()
    assert Op.__call__ is call
    names = {"Multiply", "Sum", "Sum gradient", "Multiply gradient"}  # and no ops of gradients
    assert clock.seconds.keys() == names | {REST}


def test_short_ops_share_a_row():
    spent = {"Convolve": 20.0, "Add": 0.25, REST: 3.0, "Exp": 0.125, "Pool": 30.0}
    assert profile.table(spent).rows == [
        ["Pool", "30.0"],
        ["Convolve", "20.0"],
        ["less than 0.5 ms each", "0.4"],
        [REST, "3.0"],
        ["**sum**", "**53**"],
    ]
    assert "Medians of 15 steps" in profile.page(spent, 15, 25)


@pytest.mark.slow
def test_the_times_of_the_ops_are_those_of_the_step(monkeypatch):
    monkeypatch.setattr("tinyprop.nn.NIN", "C(40,5,4,2)-C(10,1,1,0)-P(8,8,0,avg)")
    spent = profile.measured(steps=2, images=2, width=0.05)
    assert {"Convolve 2x3x32x32 10x3x5x5", "Convolve gradient 2x3x32x32 10x3x5x5"} <= spent.keys()
    assert min(spent.values()) >= 0
    assert spent[REST] > 0
