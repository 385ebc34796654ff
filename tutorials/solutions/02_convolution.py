"""Solutions of lesson 2: convolution and pooling as array programs."""

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from tinyprop.functional.tiles import one_axis

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

# Exercise 2. A pixel meets element (i, j) of the kernel at the place (i, j) above and to the left of it: backwards, the
# kernel is turned round, and inputs and outputs change places.

image = tp.tensor(x, requires_grad=True)
out = F.conv2d(image, w)
g = random.standard_normal(out.shape)
(gradient,) = tp.grad(out, [image], g)
turned = w[:, :, ::-1, ::-1].transpose(1, 0, 2, 3)  # (O, C, k, k) -> (C, O, k, k)
assert np.allclose(gradient.data, by_one_product(g, turned, padding=2))

# Exercise 3. 4 outputs of a kernel of 3 are a product of polynomials with 6 coefficients: 5 points and infinity. In two
# dimensions 36 multiplications for 16 outputs, instead of 144: 4 times fewer.


def rounding(points, step=4, cases=4000):
    size = len(points) + 1
    matrices = [np.kron(m, m) for m in one_axis(step, points)]
    random = np.random.default_rng(1)
    x, w = random.standard_normal((size**2, cases)), random.standard_normal(((size + 1 - step) ** 2, cases))
    read, weigh, write = matrices
    exact = write @ ((read @ x) * (weigh @ w))
    read, weigh, write, x, w = (a.astype(np.float32) for a in (*matrices, x, w))
    off = write @ ((read @ x) * (weigh @ w)) - exact
    return np.sqrt((off**2).mean() / (exact**2).mean())


read, weigh, write = one_axis(4, (0, 1, -1, 2, -2))
pixels, kernel = random.standard_normal(6), random.standard_normal(3)
assert np.allclose(write @ ((read @ pixels) * (weigh @ kernel)), np.correlate(pixels, kernel, "valid"))
assert 3**2 * 4**2 / 6**2 == 4
assert rounding((0, 1, -1, 0.5, -2)) < 0.9 * rounding((0, 1, -1, 2, -2))
