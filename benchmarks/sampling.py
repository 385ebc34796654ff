"""What `tinyprop verify` adds to drawing random numbers: C01, the mean of ReLU, against drawing alone.

    python benchmarks/sampling.py [--samples 1e8]

Both draw as many float32 normals with the same generator on the same threads, in turns in this process.
"""

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

import tinyprop as tp
from tinyprop.verify.monte_carlo import BLOCK, TASK, Sampler

REPEATS = 7


def draw(task):
    random = np.random.Generator(np.random.SFC64(task))
    for _ in range(TASK // BLOCK):
        random.standard_normal(BLOCK, np.float32)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=float, default=1e8)
    tasks = max(1, round(parser.parse_args().samples / TASK))
    ratios = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        with ThreadPoolExecutor(Sampler().threads) as pool:
            list(pool.map(draw, range(tasks)))
        drawn = time.perf_counter()
        tp.verify.run(["C01"], samples=tasks * TASK)
        ratios.append((time.perf_counter() - drawn) / (drawn - start))
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"{tasks * TASK:,} samples: {median(ratios):.2f} times drawing alone ({spread})")


if __name__ == "__main__":
    main()
