"""A network of your own: two branches, a layer that is used twice, and a loop."""

import numpy as np

import tinyprop as tp
import tinyprop.functional as F


class Net(tp.nn.Module):
    def __init__(self, inputs, width, classes):
        self.first = tp.nn.NormPropLinear(inputs, width)
        self.branches = [tp.nn.Linear(width, width), tp.nn.Linear(width, width)]
        self.shared = tp.nn.Linear(width, width)
        self.last = tp.nn.Linear(width, classes)

    def forward(self, x):
        h = self.first(x)
        left, right = (branch(h) for branch in self.branches)
        h = F.relu(left) - F.tanh(right)
        for _ in range(2):
            h = h + 0.5 * F.gelu(self.shared(h))
        return self.last(h)


if __name__ == "__main__":
    tp.manual_seed(0)
    points = tp.randn(500, 2)
    labels = (np.hypot(*points.numpy().T) > 1.2).astype(int)  # outside a circle, or inside
    net = Net(inputs=2, width=32, classes=2)

    for record in tp.propagate(net, [0.0, 0.0], np.eye(2)):
        print(f"{record.layer:22} variance {record.variance.mean():.2f}")

    step = tp.train.TrainingStep(net, tp.optim.Adam(net.parameters(), lr=0.01))
    for _ in range(100):
        step(points.data, labels)
    accuracy = (net(points).numpy().argmax(axis=1) == labels).mean()
    print(f"{accuracy:.0%} of the points are classified correctly")

    for record in tp.observe(net, points, labels):
        print(f"{record.name:22} gradient {float(abs(record.gradient.data).mean()):.1e}")
