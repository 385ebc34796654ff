"""Solutions of lesson 6: NormProp from equation to layer."""

import numpy as np

import tinyprop as tp
import tinyprop.functional as F

random = np.random.default_rng(0)
c = tp.moments.gaussian("relu")

# Exercise 1. The length is that of a whole filter (C, k, k), and gamma, beta belong to a channel of the output.


def normprop_conv(x, weight, gamma, beta, padding):
    length = F.sqrt((weight**2).sum(axis=(1, 2, 3)))  # (O,)
    u = F.conv2d(x, weight * (gamma / length).reshape(-1, 1, 1, 1), padding=padding)
    return (F.relu(u + beta.reshape(-1, 1, 1)) - c.mean) / c.std


layer = tp.nn.NormPropConv2d(3, 8, 5, padding=2)
layer.beta.data = random.standard_normal(8, np.float32)
x = tp.tensor(random.standard_normal((2, 3, 10, 10), np.float32))
mine = normprop_conv(x, layer.weight, layer.gamma, layer.beta, padding=2)
assert np.allclose(mine.data, layer(x).data, atol=1e-5)

# Exercise 2. max(0, v) - t = max(v - t, -t). With 1/c1 in the weights, v = u/c1 + beta/c1 and t = c2/c1.

u, beta = random.standard_normal(1000), 0.3
z, b, t = u / c.std, (beta - c.mean) / c.std, c.mean / c.std
assert np.allclose(np.maximum(z + b, -t), (np.maximum(u + beta, 0) - c.mean) / c.std)

# Exercise 3. The step is orthogonal to w, so |w - lr g|^2 = |w|^2 + lr^2 |g|^2.


def lengths(constrained):
    layer = tp.nn.NormPropLinear(10, 5)
    tp.optim.normalize_weights(layer)
    optimizer = tp.optim.SGD(layer.parameters(), lr=1.0, momentum=0.0)
    x, found = tp.tensor(np.random.default_rng(1).standard_normal((50, 10), np.float32)), []
    for _ in range(200):
        (layer(x) ** 3).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if constrained:
            tp.optim.normalize_weights(layer)
        found.append(np.linalg.norm(layer.weight.data, axis=1))
    return np.array(found)


free = lengths(constrained=False)
assert (np.diff(free, axis=0) > -1e-6).all()
assert (free[-1] > 1.001).all()
assert np.allclose(lengths(constrained=True), 1, atol=1e-5)
