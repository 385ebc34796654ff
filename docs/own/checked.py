"""A layer that is wrong in three ways, what `tp.testing` says about it, and the same layer put
right."""

import numpy as np

import tinyprop as tp
import tinyprop.functional as F
from tinyprop import nn


class Gate(tp.Op):
    """x * sigmoid(w), with a rule of its own for gradients."""

    def forward(self, x, w):
        return x / (1.0 + np.exp(-w))

    def backward(self, g, x, w):
        s = F.sigmoid(w)
        return g * s, g * x * s  # wrong: the slope of sigmoid is s * (1 - s)


class Wrong(nn.Module):
    """A gate for each feature, then the mean of the batch is removed; in evaluation, a running
    mean."""

    def __init__(self, features):
        self.weight = tp.zeros(features, requires_grad=True)
        self.mean = np.zeros(features, np.float32)  # wrong: an array is not part of the state

    def forward(self, x):
        y = Gate()(x, self.weight)
        if not self.training:
            return y - tp.tensor(self.mean).astype(y.dtype)
        mean = F.mean(y, 0)  # wrong: it looks across the batch, and does not say so
        if not nn.is_observing():
            self.mean = 0.9 * self.mean + 0.1 * mean.numpy()
        return y - mean


class Right(nn.Module):
    """The same without the three mistakes."""

    sums_over_batch = True  # all it takes from other samples are sums by `over_batch`

    def __init__(self, features):
        self.weight = tp.zeros(features, requires_grad=True)
        self.mean = tp.zeros(features)  # without a gradient: saved, but not trained

    def forward(self, x):
        y = x * F.sigmoid(self.weight)
        if not self.training:
            return y - self.mean
        mean = nn.over_batch(F.sum(y, 0)) / nn.over_batch(len(y))
        if not nn.is_observing():
            self.mean.data[...] += 0.1 * (mean.data - self.mean.data)
        return y - mean


if __name__ == "__main__":
    tp.manual_seed(0)
    x = tp.randn(4, 3)
    try:
        tp.testing.check_layer(Wrong(3), x)
    except tp.testing.CheckError as error:
        print(error)

    tp.testing.check_layer(Right(3), x)
    print("\nRight passes every check.")

    layer = nn.NormPropLinear(10, 4, activation="gelu", mode="exact")
    print("\nNormProp:", tp.testing.check_normalized(layer))
