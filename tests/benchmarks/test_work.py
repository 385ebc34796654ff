from benchmarks.work import gradient, step_work
from tinyprop import nn

PRODUCTS = ("Convolve", gradient("Convolve"))


def test_without_tiles_it_is_the_arithmetic_of_textbooks():
    """Each weight meets each place of its window once forwards and twice backwards, but once in the
    first layer."""
    net = nn.build("C(64,3,1,1)-P(2,2,0,max)-C(32,3,1,1)-C(10,1,1,0)-P(4,4,0,avg)")
    forwards = [
        2 * 5 * places * weights
        for places, weights in [(64, 64 * 3 * 9), (16, 32 * 64 * 9), (16, 320)]
    ]
    work = step_work(net, (5, 3, 8, 8), exact=True)
    assert sum(work[op].flops for op in PRODUCTS) == 3 * sum(forwards) - forwards[0]
