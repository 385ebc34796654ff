"""A layer of your own: a circular convolution of vectors, with a rule for `tp.propagate`."""

import numpy as np

import tinyprop as tp
import tinyprop.functional as F


class Circular(tp.nn.Module):
    """tanh of a weighted sum of each value and its next neighbours, in a circle.

    The mean of its input is subtracted first. It is measured on fixed samples."""

    per_sample = True

    def __init__(self, features, size):
        start = np.arange(features)[:, None]
        self.places = (start + np.arange(size)) % features  # (features, size)
        self.weight = tp.tensor(tp.randn(size).data / np.sqrt(size), requires_grad=True)
        self.center = tp.zeros(features)  # without a gradient: saved, but not trained

    def weighted_sum(self, x):
        neighbours = (x - self.center)[:, self.places]  # (N, features, size)
        return F.sum(neighbours * self.weight, axis=2)

    def forward(self, x):
        return F.tanh(self.weighted_sum(x))

    def propagate(self, state):
        """What it does to the moments of a signal: a linear map, and tanh."""
        matrix = np.zeros((len(self.places), len(self.places)))
        np.put_along_axis(matrix, self.places, self.weight.numpy()[None], axis=1)
        return (state - self.center).linear(matrix).apply("tanh")

    def pre_activation(self, output, x):
        """What `tp.observe` and `tp.propagate` report of a layer with weights."""
        return self.weighted_sum(x)

    def refresh(self, x):
        """`tp.nn.refresh` calls this with the input that fixed samples bring to the layer, and so
        does a run every `--refresh` steps."""
        self.center.data[...] = x.data.mean(axis=0)


if __name__ == "__main__":
    tp.manual_seed(0)
    net = tp.nn.Sequential(Circular(12, 3), tp.nn.Linear(12, 2))
    x = tp.randn(200_000, 12) + 1.0
    tp.nn.refresh(net, x[:1000])
    for predicted, seen in zip(
        tp.propagate(net, np.ones(12), np.eye(12)), tp.observe(net, x), strict=False
    ):
        variance = seen.pre_activation.var(axis=0).numpy()
        print(f"{predicted.layer:10} predicted {predicted.variance[:2]}, measured {variance[:2]}")
