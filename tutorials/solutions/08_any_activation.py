"""Solutions of lesson 8: any activation."""

import math

import numpy as np

import tinyprop as tp

# Exercise 1. Gauss and Legendre on [-9, 9], weighted by the bell curve.

nodes, weights = np.polynomial.legendre.leggauss(120)
z = 9 * nodes
bell = 9 * weights * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
by_hand = bell @ np.array([math.erf(x) for x in z]) ** 2
closed = 2 / math.pi * math.asin(2 / 3)
assert math.isclose(by_hand, closed, rel_tol=1e-12)
assert math.isclose(tp.moments.gaussian("erf").std ** 2, closed, rel_tol=1e-12)  # its mean is 0

# Exercise 2. (1 + e)^100 < 1.01 needs e < 0.0001 = 1e-4. The relative standard error of c1 is sqrt((k - 1)/(4 N)) with
# ReLU's kurtosis k = 5.41 (lesson 4): more than 10^8 samples, and twice the error is not rare.

error = 1.01 ** (1 / 100) - 1
samples = (5.4076 - 1) / 4 / error**2
print(f"relative error {error:.1e}: {samples:.1e} samples")
assert 1.0e8 < samples < 1.2e8

# Exercise 3. c1^2 = ((1 + a^2) - (1 - a)^2/pi) / 2, so 2 c1 dc1/da = a + (1 - a)/pi.

a = tp.tensor(np.linspace(-2, 2, 9), requires_grad=True)
c1 = tp.moments.gaussian("prelu", a=a).std
(slope,) = tp.grad(c1.sum(), [a])
assert np.allclose(slope.data, (a.data + (1 - a.data) / math.pi) / (2 * c1.data))
