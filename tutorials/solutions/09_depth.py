"""Solutions of lesson 9: depth."""

import math

import numpy as np

import tinyprop as tp

# Exercise 1. Normalised Hermite polynomials: h_{k+1} = (x h_k - sqrt(k) h_{k-1}) / sqrt(k + 1).

nodes, weights = np.polynomial.legendre.leggauss(300)
z = 10 * nodes
bell = 10 * weights * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
before, h, coefficients = np.zeros_like(z), np.ones_like(z), []
for k in range(60):
    coefficients.append(bell @ (np.tanh(z) * h))
    before, h = h, (z * h - math.sqrt(k) * before) / math.sqrt(k + 1)
squares, degrees = np.array(coefficients) ** 2, np.arange(60)
mean_degree = (degrees * squares).sum() / squares[1:].sum()
print(f"mean degree of tanh: {mean_degree:.8f}")
assert math.isclose(mean_degree, tp.moments.gaussian("tanh").jacobian_factor ** 2, rel_tol=1e-6)

# Exercise 2. The gain of a layer must stay below e^(1/50); it falls with beta: halve the interval.


def gain(beta):
    return tp.moments.gaussian("relu", beta, 1.0).jacobian_factor ** 2


low, high = 0.0, 5.0
for _ in range(50):
    middle = (low + high) / 2
    low, high = (middle, high) if gain(middle) ** 50 > math.e else (low, middle)
print(f"beta = {low:.4f}")
assert abs(low - 1.9431) < 1e-4

# Exercise 3. The cosine of the two outputs. Where the gain of a layer is above 1, different inputs drift apart: with
# gamma = 1, and more slowly in the exact mode. With 1/1.21 all inputs end up alike, because all that is left are means
# of units.


def correlation_after(layers, width=400, **how):
    random, found = np.random.default_rng(0), []
    for seed in range(3):
        tp.manual_seed(seed)
        a, b = random.standard_normal((2, width))
        x = tp.tensor(np.array([a, 0.5 * a + math.sqrt(0.75) * b], np.float32))
        for _ in range(layers):
            x = tp.nn.NormPropLinear(width, width, **how)(x)
        found.append((x.data[0] @ x.data[1]) / np.linalg.norm(x.data[0]) / np.linalg.norm(x.data[1]))
    return np.mean(found)


one, paper, exact = (
    correlation_after(20, **how) for how in ({"gamma": 1.0}, {"gamma": "jacobian"}, {"gamma": 1.0, "mode": "exact"})
)
print(f"cosine of two outputs: {one:.2f} with gamma = 1, {paper:.2f} with 1/1.21, {exact:.2f} in the exact mode")
assert max(one, exact) < 0.4 < 0.9 < paper
