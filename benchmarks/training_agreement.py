"""Does tinyprop train as PyTorch does? The same network on CIFAR-10 by both, for several seeds.

    python benchmarks/training_agreement.py --root DIR [--epochs 5] [--seeds 3]

The paper's network at quarter width, the first 10,000 training images, batch 50, learning rate 0.05, momentum 0.9,
weight decay 0.001. Seeds mean other weights and another order in each engine, so that curves agree within the spread of
the seeds, not to the digit. On two cores, about a minute for an epoch of both.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import tinyprop as tp
from tinyprop.train import Config, Run

RELU = tp.moments.gaussian("relu")


class NormPropConv2d(torch.nn.Module):
    def __init__(self, inputs, outputs, size, padding):
        super().__init__()
        bound = (6 / ((inputs + outputs) * size * size)) ** 0.5
        self.weight = torch.nn.Parameter(torch.empty(outputs, inputs, size, size).uniform_(-bound, bound))
        self.gamma = torch.nn.Parameter(torch.full((outputs,), 1 / RELU.jacobian_factor))
        self.beta = torch.nn.Parameter(torch.zeros(outputs))
        self.padding = padding

    def lengths(self):
        return self.weight.flatten(1).norm(dim=1)

    def forward(self, x):
        u = F.conv2d(x, self.weight, padding=self.padding) * (self.gamma / self.lengths())[:, None, None]
        return (torch.relu(u + self.beta[:, None, None]) - RELU.mean) / RELU.std


def pytorch(seed, epochs, train, test):
    """Training loss and test error after each epoch."""
    torch.manual_seed(seed)
    last = torch.nn.Conv2d(48, 10, 1)
    torch.nn.init.xavier_uniform_(last.weight)
    torch.nn.init.zeros_(last.bias)
    net = torch.nn.Sequential(
        NormPropConv2d(3, 48, 5, 2), NormPropConv2d(48, 40, 1, 0), torch.nn.MaxPool2d(3, 2, 1),
        NormPropConv2d(40, 24, 1, 0), NormPropConv2d(24, 48, 5, 2), NormPropConv2d(48, 48, 1, 0),
        torch.nn.AvgPool2d(3, 2, 1), NormPropConv2d(48, 48, 1, 0), NormPropConv2d(48, 48, 5, 0),
        NormPropConv2d(48, 48, 1, 2), last, torch.nn.AvgPool2d(8), torch.nn.Flatten(),
    )  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=0.001)
    mean, std = train.images.mean(axis=0), train.images.std(axis=0)
    prepared = [torch.tensor(((d.images - mean) / std).astype(np.float32)) for d in (train, test)]
    labels, truth = (torch.tensor(d.labels) for d in (train, test))
    for _ in range(epochs):
        losses = []
        for batch in torch.randperm(len(labels)).split(50):
            optimizer.zero_grad()
            loss = F.cross_entropy(net(prepared[0][batch]), labels[batch])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            with torch.no_grad():
                for layer in net:
                    if isinstance(layer, NormPropConv2d):
                        layer.weight /= layer.lengths()[:, None, None, None]
        with torch.no_grad():
            guesses = torch.cat([net(part).argmax(1) for part in prepared[1].split(500)])
        yield np.mean(losses), (guesses != truth).float().mean().item()


def tinyprop(seed, epochs, root):
    """Training loss and test error after each epoch."""
    config = Config(data="cifar10", width=0.25, epochs=epochs, train_size=10_000, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(config, Path(folder), root)
        run.run()
    return [(row["train_loss"], row["test_error"]) for row in run.history]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="folder of CIFAR-10")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    train = tp.data.load("cifar10", options.root, "train").first(10_000)
    test = tp.data.load("cifar10", options.root, "test")
    results = {
        "tinyprop": [tinyprop(seed, options.epochs, options.root) for seed in range(options.seeds)],
        "PyTorch": [list(pytorch(seed, options.epochs, train, test)) for seed in range(options.seeds)],
    }
    print("epoch  engine    training loss    test error, %    (mean and standard deviation over seeds)")
    for epoch in range(options.epochs):
        for engine, runs in results.items():
            loss, error = np.array([run[epoch] for run in runs]).T
            print(f"{epoch + 1:5}  {engine:8}  {loss.mean():.3f} +- {loss.std(ddof=1):.3f}  ", end="")
            print(f"{100 * error.mean():5.1f} +- {100 * error.std(ddof=1):.1f}")


if __name__ == "__main__":
    main()
