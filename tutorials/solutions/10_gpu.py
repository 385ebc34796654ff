"""Solutions of lesson 10: the same code on a GPU."""

import numpy as np

import tinyprop as tp
import tinyprop.functional as F

SPEC = "C(16,5,1,2)-C(16,1,1,0)-P(2,2,0,max)-C(24,3,1,1)-C(10,1,1,0)-P(8,8,0,avg)"
random = np.random.default_rng(0)
images = random.standard_normal((32, 3, 16, 16), np.float32)
labels = random.integers(0, 10, 32)


def ops_of(work):
    """How many elements each op makes while work() runs."""
    sizes, call = [], tp.Op.__call__

    def watched(op, *inputs):
        out = call(op, *inputs)
        sizes.append(out.size)
        return out

    tp.Op.__call__ = watched
    try:
        work()
    finally:
        tp.Op.__call__ = call
    return sizes


# Exercise 1. Deviations, their squares, and what the gradient makes of them: each is a pass over the batch.


def textbook(x, eps=1e-5):
    return (x - F.mean(x, axis=0)) / F.sqrt(F.var(x, axis=0) + eps)


def large_ops(norm):
    x = tp.tensor(random.standard_normal((500, 20), np.float32), requires_grad=True)
    return sum(size >= x.size for size in ops_of(lambda: (norm(x) ** 3).sum().backward()))


layer = tp.nn.BatchNorm(20)
x = tp.tensor(random.standard_normal((500, 20), np.float32))
assert np.allclose(textbook(x).numpy(), layer(x).numpy(), atol=1e-4)
print(f"ops on whole batches: {large_ops(textbook)} in the textbook, {large_ops(layer)} in tinyprop")
assert large_ops(textbook) > large_ops(layer)

# Exercise 2. Everything becomes float64, and the loss nearly stays: float32 was enough.


def where_is(net):
    kinds = {(p.backend, str(p.dtype)) for p in net.parameters()}
    return kinds | {("numpy" if isinstance(a, np.ndarray) else "cupy", str(a.dtype)) for a in net.state_dict().values()}


net = tp.nn.build(SPEC, norm="batch")
assert {dtype for _, dtype in where_is(net)} == {"float32"}
before = F.cross_entropy(net(tp.tensor(images)), labels).item()
net.to(dtype="float64")
assert {dtype for _, dtype in where_is(net)} == {"float64"}
after = F.cross_entropy(net(tp.tensor(images.astype(np.float64))), labels).item()
assert abs(after - before) < 1e-4

# Exercise 3. The ops of a layer are the slope of a straight line.


def ops_at(depth):
    net = tp.nn.Sequential(*(tp.nn.NormPropLinear(20, 20) for _ in range(depth)))
    x = tp.tensor(random.standard_normal((8, 20), np.float32))
    forward = len(ops_of(lambda: net(x)))
    return forward, len(ops_of(lambda: net(x).sum().backward()))


counts = np.array([ops_at(depth) for depth in (2, 4, 6, 8)])
per_layer = np.diff(counts, axis=0) / 2
assert (per_layer == per_layer[0]).all()
print(f"ops of a layer: {per_layer[0, 0]:g} forwards, {per_layer[0, 1] - per_layer[0, 0]:g} backwards")
assert per_layer[0, 1] > per_layer[0, 0]
