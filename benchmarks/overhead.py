"""What the engine itself costs: 1,000 additions of 8x8 arrays, forward and backward, against PyTorch.

    python benchmarks/overhead.py

Both run interleaved in this process; the ratio of the medians is what counts, not the times.
"""

import time
from statistics import median

import numpy as np
import torch

import tinyprop as tp

OPS, REPEATS = 1_000, 41


def seconds(x, y, gradient):
    start = time.perf_counter()
    total = x
    for _ in range(OPS):
        total = total + y
    total.backward(gradient)
    return time.perf_counter() - start


def main():
    torch.set_num_threads(1)
    ones = np.ones((8, 8), np.float32)
    ours, theirs = [], []
    for _ in range(REPEATS):
        x, y = (tp.tensor(ones.copy(), requires_grad=True) for _ in range(2))
        ours.append(seconds(x, y, ones))
        x, y = (torch.tensor(ones, requires_grad=True) for _ in range(2))
        theirs.append(seconds(x, y, torch.tensor(ones)))
    micro = 1e6 / OPS
    print(f"tinyprop {median(ours) * micro:.1f} us, PyTorch {median(theirs) * micro:.1f} us for an op and its gradient")
    print(f"ratio {median(ours) / median(theirs):.2f}")


if __name__ == "__main__":
    main()
