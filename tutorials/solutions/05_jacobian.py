"""Solutions of lesson 5: the Jacobian."""

import math

import numpy as np

import tinyprop as tp
from tinyprop.verify.closed_forms import spectrum_edges

random = np.random.default_rng(0)


def random_layer(units, inputs):
    layer = tp.nn.NormPropLinear(inputs, units, gamma=1.0)
    layer.weight.data = random.standard_normal((units, inputs), np.float32)
    return layer


def jacobian(layer, inputs):
    return tp.jacobian(layer, tp.tensor(random.standard_normal(inputs, np.float32))).numpy().astype(np.float64)


# Exercise 1. About half of the rows are left, and they are independent as long as there are fewer of them than inputs.
# So from twice as many units as inputs on, as many rows are on as there are inputs, and no singular value is 0.

for units, inputs in ((100, 200), (200, 100)):
    largest = [np.linalg.norm(jacobian(random_layer(units, inputs), inputs), 2) for _ in range(8)]
    edge = spectrum_edges(units, inputs)[1]
    assert abs(np.mean(largest) / edge - 1) < 0.08  # the edge is that of a large layer
assert (np.linalg.svd(jacobian(random_layer(300, 100), 100), compute_uv=False) > 0.01).all()
assert (np.linalg.svd(jacobian(random_layer(100, 100), 100), compute_uv=False) < 1e-4).sum() > 20

# Exercise 2. Which units are on says nothing about the direction of their rows up to its sign, so layers multiply.

gains = []
for _ in range(400):
    net = tp.nn.Sequential(*(random_layer(16, 16) for _ in range(3)))
    gains.append((jacobian(net, 16) ** 2).sum() / 16)
exact, error = (math.pi / (math.pi - 1)) ** 3, np.std(gains, ddof=1) / math.sqrt(len(gains))
print(f"{np.mean(gains):.3f} +- {error:.3f}, exact {exact:.4f}")
assert abs(np.mean(gains) - exact) < 5 * error

# Exercise 3. Both units are on with probability (pi - arccos rho) / (2 pi). It is 0 for rho = 0, and for rho = -1.

rho, count = 0.5, 40_000
layer = tp.nn.NormPropLinear(2, 2, gamma=1.0)
layer.weight.data = np.array([[1.0, 0.0], [rho, math.sqrt(1 - rho * rho)]], np.float32)
x = tp.tensor(random.standard_normal((count, 2), np.float32), requires_grad=True)
out = layer(x)
rows = [tp.grad(out, [x], np.eye(2, dtype=np.float32)[[unit] * count], retain_graph=True)[0].data for unit in (0, 1)]
products = (rows[0] * rows[1]).sum(axis=1)
c1 = tp.moments.gaussian("relu").std
exact = rho * (math.pi - math.acos(rho)) / (2 * math.pi * c1**2)
assert abs(products.mean() - exact) < 5 * products.std() / math.sqrt(count)
