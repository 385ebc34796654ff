"""Solutions of lesson 2: convolution and pooling as array programs."""

import numpy as np

import tinyprop as tp
import tinyprop.functional as F

random = np.random.default_rng(0)
x, w = random.standard_normal((2, 3, 9, 9)), random.standard_normal((4, 3, 3, 3))

# Exercise 1. Pad with zeros before, and take every stride-th window; both are done by slices.


def by_one_product(x, w, stride=1, padding=0):
    k = w.shape[-1]
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (k, k), axis=(2, 3))[:, :, ::stride, ::stride]
    n, c, rows, columns, _, _ = windows.shape
    matrix = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * rows * columns, c * k * k)
    return (matrix @ w.reshape(len(w), -1).T).reshape(n, rows, columns, len(w)).transpose(0, 3, 1, 2)


for stride, padding in ((1, 0), (2, 1), (3, 2)):
    assert np.allclose(by_one_product(x, w, stride, padding), F.conv2d(x, w, None, stride, padding).data)

# Exercise 2. A pixel meets element (i, j) of the filter at the place (i, j) above and to the left of it: backwards, the
# filter is turned round, and inputs and outputs change places.

image = tp.tensor(x, requires_grad=True)
out = F.conv2d(image, w)
g = random.standard_normal(out.shape)
(gradient,) = tp.grad(out, [image], g)
turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)  # (O, C, k, k) -> (C, O, k, k)
assert np.allclose(gradient.data, by_one_product(g, turned, padding=2))

# Exercise 3. A polynomial with 4 coefficients times one with 3 has 6: that takes 5 points and infinity. In two
# dimensions there are 36 multiplications for 16 outputs, instead of 144: 4 times fewer.


def transforms(step, k, points):
    def evaluate(n):
        return np.array([[float(p) ** i for i in range(n)] for p in points] + [[0.0] * (n - 1) + [1.0]])

    return np.linalg.inv(evaluate(step + k - 1)).T, evaluate(k), evaluate(step).T


def convolved(matrices, x, w):
    of_input, of_filter, of_output = matrices
    return of_output @ ((of_input @ x) * (of_filter @ w))


def rounding(points, step=4, k=3, cases=4000):
    matrices = [np.kron(m, m) for m in transforms(step, k, points)]
    random = np.random.default_rng(1)
    x, w = random.standard_normal(((step + k - 1) ** 2, cases)), random.standard_normal((k**2, cases))
    exact = convolved(matrices, x, w)
    off = convolved([m.astype(np.float32) for m in matrices], x.astype(np.float32), w.astype(np.float32)) - exact
    return np.sqrt((off**2).mean() / (exact**2).mean())


pixels, weights = random.standard_normal(6), random.standard_normal(3)
found = convolved(transforms(4, 3, (0, 1, -1, 2, -2)), pixels, weights)
assert np.allclose(found, np.correlate(pixels, weights, "valid"))
assert 3**2 * 4**2 / 6**2 == 4
assert rounding((0, 1, -1, 0.5, -2)) < 0.9 * rounding((0, 1, -1, 2, -2))
